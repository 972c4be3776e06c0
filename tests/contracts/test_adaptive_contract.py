"""What every adaptation and every curriculum must do."""

import io
import itertools

import pytest
import torch

from flowtempo.densities import LogitNormal, Truncated, Uniform
from flowtempo.errors import UserError
from flowtempo.timesteps import (
    ADAPTATIONS,
    CURRICULA,
    DELAY,
    AdaptiveProposal,
    CurriculumProposal,
    adaptation,
    curriculum,
)

TARGETS = [Uniform(), LogitNormal(-0.75, 1), Truncated(Uniform(), 0.1, 0.8)]
CURRICULUM_FORMS = {
    "switch": "switch(mixture(logit_normal(-0.75, 1), 0.2), uniform, 0.3)",
    "clts": "clts",
}


def losses_at(t):
    return 1 + 4 * t.double() ** 2


def told(proposal, steps, loss=losses_at):
    """Feed it with what a run of so many steps would measure."""
    for step in range(steps):
        t = proposal.at(step).draw(64, step=step, seed=0).t
        proposal.update(step, proposal.moments(t, loss(t)))
    return proposal


def make(name, target, **options):
    return told(AdaptiveProposal(target, adaptation(name), **options), 20)


@pytest.mark.parametrize("target", TARGETS, ids=str)
@pytest.mark.parametrize("spacing", ["independent", "stratified"])
@pytest.mark.parametrize("name", ADAPTATIONS)
def test_kept_objectives_are_unbiased(name, spacing, target):
    proposal = make(name, target, spacing=spacing).at(20)
    assert str(proposal.density).startswith(name)
    # The midpoint rule stumbles over the jumps of the density.
    assert proposal.check(1 << 18).error < 1e-4
    times = proposal.draw(1 << 16, step=0, seed=1)
    error = 4 * float(times.weight.std()) / 256
    assert float(times.weight.mean()) == pytest.approx(1, abs=error)
    wanted = target.quantile((torch.arange(1 << 16) + 0.5) / (1 << 16)).square().mean()
    assert float((times.weight * times.t**2).mean()) == pytest.approx(float(wanted), abs=2 * error)
    assert float(times.weight.max()) <= 1 / adaptation(name).floor + 1e-6


@pytest.mark.parametrize("target", TARGETS, ids=str)
def test_the_density_is_the_targets_times_a_factor_for_each_part(target):
    density = make("loss_second_moment(4)", target).at(20).density
    u = torch.linspace(0, 1, 1001, dtype=torch.float64)
    t = density.quantile(u)
    torch.testing.assert_close(density.cdf(t), u, rtol=0, atol=1e-12)
    ends = target.quantile(torch.linspace(0, 1, 5, dtype=torch.float64))
    masses = [density.mass(lo, hi) for lo, hi in itertools.pairwise(ends.tolist())]
    assert masses == pytest.approx(density.shares.tolist(), abs=1e-12)
    inside = target.quantile((torch.arange(4, dtype=torch.float64) + 0.3) / 4)
    factor = density.pdf(inside) / target.pdf(inside)
    torch.testing.assert_close(factor, 4 * density.shares)


@pytest.mark.parametrize("name", ADAPTATIONS)
def test_moved_objectives_have_weights_of_one(name):
    moved = make(name, Uniform(), moves_objective=True).at(20)
    kept = make(name, Uniform()).at(20)
    assert (moved.draw(512, step=0, seed=0).weight == 1).all()
    t = torch.linspace(0.01, 0.99, 50)
    torch.testing.assert_close(moved.target.pdf(t), kept.density.pdf(t), rtol=0.2, atol=0)
    assert moved.target.mass(0.7, 1) > 0.35


@pytest.mark.parametrize("name", ADAPTATIONS)
def test_the_state_goes_through_a_file(name):
    first = make(name, LogitNormal(0, 1), spacing="stratified")
    first.at(20)
    file = io.BytesIO()
    torch.save(first.state_dict(), file)
    file.seek(0)
    second = AdaptiveProposal(LogitNormal(0, 1), adaptation(name), "stratified")
    second.load_state_dict(torch.load(file, weights_only=True))
    for step in range(20, 25):
        times = [each.at(step).draw(3, step=step, seed=5) for each in (first, second)]
        assert torch.equal(times[0].t, times[1].t)
        assert torch.equal(times[0].weight, times[1].weight)
        for each in (first, second):
            each.update(step, each.moments(times[0].t, losses_at(times[0].t)))


@pytest.mark.parametrize("name", ADAPTATIONS)
def test_a_step_is_first_used_two_steps_later(name):
    proposal = AdaptiveProposal(Uniform(), adaptation(name))
    t = torch.linspace(0.01, 0.99, 64)
    proposal.update(4, proposal.moments(t, losses_at(t)))
    assert DELAY == 2
    assert proposal.at(5).density is None
    assert proposal.at(6).density is not None


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, 1e200])
@pytest.mark.parametrize("name", ADAPTATIONS)
def test_one_wrong_value_does_not_poison_the_density(name, bad):
    clean, spoilt = (AdaptiveProposal(Uniform(), adaptation(name)) for _ in range(2))
    t = torch.rand(64, generator=torch.Generator().manual_seed(0))
    values = losses_at(t)
    spoilt_values = values.clone()
    spoilt_values[7] = bad
    keep = torch.arange(64) != 7
    clean.update(0, clean.moments(t[keep], values[keep]))
    spoilt.update(0, spoilt.moments(t, spoilt_values))
    u = torch.linspace(0, 1, 101)
    torch.testing.assert_close(spoilt.at(2).density.quantile(u), clean.at(2).density.quantile(u))


@pytest.mark.parametrize("name", ADAPTATIONS)
def test_zero_losses_and_nothing_told_draw_from_the_target(name):
    proposal = AdaptiveProposal(LogitNormal(0, 1), adaptation(name))
    assert proposal.at(0).density is None
    t = torch.linspace(0.1, 0.9, 32)
    proposal.update(0, proposal.moments(t, torch.zeros(32)))
    assert proposal.at(2).density is None


@pytest.mark.parametrize("name", ADAPTATIONS)
def test_adaptations_have_text_forms(name):
    assert adaptation(str(adaptation(name))) == adaptation(name)
    assert adaptation(f"{name}(16, 0.25, 0.5)").bins == 16
    for text, message in [
        (f"{name}(1)", "bins = 1 must be"),
        (f"{name}(2.5)", r"bins = 2\.5 must be"),
        (f"{name}(8, 0)", r"floor = 0\.0 must be above 0"),
        (f"{name}(8, 0.1, 1)", r"decay = 1\.0 must be"),
    ]:
        with pytest.raises(UserError, match=message):
            adaptation(text)


def test_the_density_comes_to_be_the_target_times_the_root_of_the_second_moment():
    """Losses of a known second moment, 4 t^2: in part b of B the share is about (b + 1/2) / (B^2 / 2)."""
    following = adaptation("loss_second_moment(8, 0.000001, 0.999, 1)")
    noise = torch.Generator().manual_seed(0)
    proposal = told(
        AdaptiveProposal(Uniform(), following, "stratified"),
        800,
        lambda t: t.double() * 2 * torch.randn(len(t), generator=noise).double(),
    )
    edges = torch.arange(9, dtype=torch.float64) / 8
    root = ((edges[1:] ** 3 - edges[:-1] ** 3) / 3 * 8).sqrt()
    shares = torch.tensor(
        [proposal.at(802).density.mass(k / 8, (k + 1) / 8) for k in range(8)], dtype=torch.float64
    )
    torch.testing.assert_close(shares, root / root.sum(), rtol=0.1, atol=0)


def test_few_bins_and_a_last_batch_of_three():
    """100 parts that no batch fills: every loss counts from the first on, whatever the batch's size."""
    proposal = AdaptiveProposal(Uniform(), adaptation("loss_second_moment(100)"))
    for step, count in enumerate([64, 64, 3]):
        t = proposal.at(step).draw(count, step=step, seed=0).t
        proposal.update(step, proposal.moments(t, losses_at(t)))
    density = proposal.at(4).density
    assert density.mass(0.5, 1) > density.mass(0, 0.5)
    again = AdaptiveProposal(Uniform(), adaptation("loss_second_moment(100)"))
    again.load_state_dict(proposal.state_dict())
    for step in range(4, 9):
        assert torch.equal(*(each.at(step).draw(3, step=step, seed=0).t for each in (proposal, again)))


def test_loss_and_gradient_are_told_apart():
    """N(0, s^2), one optimal linear parameter per t: losses vary with t, E g^2 = 4 s^2 does not."""
    s, size = 0.5, 1 << 16
    random = torch.Generator().manual_seed(0)
    x1, x0 = s * torch.randn(size, generator=random).double(), torch.randn(size, generator=random).double()
    t = torch.rand(size, generator=random).double()
    x_t = t * x1 + (1 - t) * x0
    theta = (t * s**2 - (1 - t)) / (t**2 * s**2 + (1 - t) ** 2)
    error = theta * x_t - (x1 - x0)
    by_loss = AdaptiveProposal(Uniform(), adaptation("loss_second_moment(10, 0.001)"))
    by_gradient = AdaptiveProposal(Uniform(), adaptation("gradient_second_moment(10, 0.001)"))
    by_loss.update(0, by_loss.moments(t, error**2))
    by_gradient.update(0, by_gradient.moments(t, 2 * error * x_t))
    gradient, loss = (
        torch.tensor([each.at(2).density.mass(k / 10, (k + 1) / 10) for k in range(10)])
        for each in (by_gradient, by_loss)
    )
    torch.testing.assert_close(gradient, torch.full((10,), 0.1), rtol=0.07, atol=0)
    # The mean loss s^2 / (t^2 s^2 + (1 - t)^2) is 1 at t = 0, highest, 1 + s^2, at t = 0.8, and s^2 ... at 1.
    assert loss.argmax() in (7, 8)
    assert float(loss.max() / loss.min()) > 1.3


def test_wrong_calls():
    proposal = AdaptiveProposal(Uniform(), adaptation("loss_second_moment(4)"))
    with pytest.raises(ValueError, match="expected counts and sums"):
        proposal.update(0, torch.zeros(2, 5))
    proposal.update(3, torch.zeros(2, 4))
    with pytest.raises(ValueError, match="step 2 comes after step 3"):
        proposal.update(2, torch.zeros(2, 4))
    with pytest.raises(ValueError, match="expected"):
        proposal.load_state_dict({"state": torch.zeros(2, 5, dtype=torch.float64), "pending": []})
    with pytest.raises(UserError, match="unknown spacing"):
        AdaptiveProposal(Uniform(), adaptation("loss_second_moment"), "strat")
    with pytest.raises(UserError, match="use one of loss_second_moment, gradient_second_moment"):
        adaptation("second_moment")


@pytest.mark.parametrize("name", CURRICULA)
@pytest.mark.parametrize("moves", [True, False])
def test_curricula_depend_on_the_share_of_the_steps_alone(name, moves):
    course = curriculum(CURRICULUM_FORMS[name])
    assert curriculum(str(course)) == course
    short, long = (
        CurriculumProposal(Uniform(), course, steps, moves_objective=moves) for steps in (100, 1000)
    )
    for done in (0.0, 0.1, 0.29, 0.5, 0.99):
        one, two = short.at(round(100 * done)), long.at(round(1000 * done))
        drawn = [each.target if moves else each.density for each in (one, two)]
        assert drawn[0] == drawn[1]
        if moves:
            assert (one.draw(64, step=0, seed=0).weight == 1).all()
        else:
            assert one.check().error < 1e-3
    assert short.at(100) == short.at(99)
    assert {"curriculum", "moves_objective", "target", "density", "bands"} <= short.describe().keys()


def test_a_switch_goes_from_one_density_to_the_other():
    course = curriculum("switch(logit_normal(-0.75, 1), uniform, 0.28)")
    proposal = CurriculumProposal(Uniform(), course, 100)
    assert [str(proposal.at(step).target) for step in (0, 27, 28, 99)] == [
        "logit_normal(-0.75, 1)",
        "logit_normal(-0.75, 1)",
        "uniform",
        "uniform",
    ]


def test_clts_begins_uniform_and_stops_rising():
    proposal = CurriculumProposal(Uniform(), curriculum("clts(0.7, 0.1, 0.5, 0.9)"), 1000)
    inside = [proposal.at(step).target.mass(0.6, 0.8) for step in (0, 250, 500, 999)]
    normal = 0.6826894921 / 0.9986501020  # one standard deviation, of what lies in [0, 1]
    assert inside == pytest.approx([0.2, 0.45 * normal + 0.11, *2 * [0.9 * normal + 0.02]], abs=1e-6)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("switch(uniform, cosmap, 0)", "at = 0.0 must be above 0"),
        ("switch(uniform, uniform, 0.5)", "has no effect"),
        ("switch(uniform, nothing, 0.5)", "unknown density 'nothing'"),
        ("clts(0.7, 0)", "std = 0.0"),
        ("clts(0.7, 0.1, 2)", "over = 2.0"),
        ("clts(0.7, 0.1, 1, 1)", "most = 1.0"),
        ("linear", "unknown curriculum 'linear' .* use one of switch, clts"),
    ],
)
def test_bad_curricula(text, message):
    with pytest.raises(UserError, match=message):
        curriculum(text)


def test_a_kept_objective_needs_every_density_of_the_curriculum_to_reach_it():
    course = curriculum("switch(truncated(uniform, 0, 0.5), uniform, 0.3)")
    CurriculumProposal(Uniform(), course, 10)
    with pytest.raises(UserError, match="never draws t in"):
        CurriculumProposal(Uniform(), course, 10, moves_objective=False)
