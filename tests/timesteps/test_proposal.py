import math

import numpy as np
import pytest
import scipy.stats
import torch

from flowtempo.densities import LogitNormal, Mixture, Mode, Piecewise, Tabulated, Truncated, Uniform
from flowtempo.errors import UserError
from flowtempo.randomness import uniform
from flowtempo.timesteps import Proposal, Times

FLOORED = Mixture(LogitNormal(0, 1), 0.1)
SPACINGS = ["independent", "stratified"]

each_spacing = pytest.mark.parametrize("spacing", SPACINGS)


def draws(proposal: Proposal, batch_size: int, steps: int, seed: int = 0) -> torch.Tensor:
    return torch.stack([proposal.draw(batch_size, step=step, seed=seed).t for step in range(steps)]).double()


@each_spacing
@pytest.mark.parametrize("density", [Uniform(), LogitNormal(-0.75, 1), FLOORED], ids=str)
def test_draws_follow_the_density(density, spacing):
    t = draws(Proposal(Uniform(), density, spacing), 1000, 100).flatten()
    assert scipy.stats.kstest(t, lambda x: density.cdf(torch.as_tensor(x)).numpy()).pvalue > 1e-3


def test_stratified_puts_one_point_in_every_stratum():
    strata = (draws(Proposal(Uniform(), spacing="stratified"), 256, 20) * 256).floor().long()
    assert (strata.sort(1).values == torch.arange(256)).all()
    # Through any inverse CDF: 16 of 256 points in each sixteenth of probability.
    t = draws(Proposal(LogitNormal(0, 1), spacing="stratified"), 256, 20)
    for row in (LogitNormal(0, 1).cdf(t) * 16).floor().long():
        assert ((row.bincount(minlength=16) - 16).abs() <= 1).all()


def test_stratified_is_permuted_differently_every_step():
    strata = (draws(Proposal(Uniform(), spacing="stratified"), 64, 200) * 64).floor()
    assert not (strata.diff(dim=1) > 0).all(1).any()
    # Each place gets each end of the axis equally often.
    assert (strata.mean(0) - 31.5).abs().max() < 5 * 18.5 / 200**0.5


@pytest.mark.parametrize(("spacing", "variance"), [("stratified", 1.628e-4), ("independent", 1.0417e-2)])
def test_variance_of_the_batch_mean(spacing, variance):
    # 1 / (12 B^3) against 1 / (12 B) at B = 8: a 64th.
    steps = 4000
    means = draws(Proposal(Uniform(), spacing=spacing), 8, steps).mean(1)
    assert float(means.var()) == pytest.approx(variance, rel=5 * (2 / steps) ** 0.5)
    assert float(means.mean()) == pytest.approx(0.5, abs=5 * (variance / steps) ** 0.5)


@each_spacing
def test_slices_do_not_depend_on_ranks_and_micro_steps(spacing):
    proposal = Proposal(Uniform(), FLOORED, spacing)
    world, accumulation, micro = 2, 2, 2
    parts = {}
    for rank in range(world):
        times = proposal.draw(world * accumulation * micro, step=3, seed=1)  # as each rank does
        for micro_step in range(accumulation):
            first = (micro_step * world + rank) * micro
            parts[first] = times[first : first + micro]
    union = torch.cat([parts[first].t for first in sorted(parts)])
    whole = proposal.draw(8, step=3, seed=1)
    assert torch.equal(union, whole.t)
    assert len(union.unique()) == 8
    assert all(
        len(part) == micro and torch.equal(part.weight, whole[first : first + micro].weight)
        for first, part in parts.items()
    )
    if spacing == "stratified":
        assert (FLOORED.cdf(union) * 8).floor().sort().values.tolist() == list(range(8))


@each_spacing
def test_draws_depend_on_seed_and_step_alone(spacing):
    proposal = Proposal(Uniform(), FLOORED, spacing)
    first = proposal.draw(16, step=5, seed=2)
    np.random.seed(0)  # noqa: NPY002
    torch.manual_seed(0)
    numpy_state, torch_state = np.random.get_state(), torch.get_rng_state()  # noqa: NPY002
    for step in range(100):
        proposal.draw(16, step=step, seed=2)
    assert np.array_equal(np.random.get_state()[1], numpy_state[1])  # noqa: NPY002
    assert torch.equal(torch.get_rng_state(), torch_state)
    again = proposal.draw(16, step=5, seed=2)
    assert torch.equal(first.t, again.t)
    assert torch.equal(first.weight, again.weight)
    assert not torch.equal(first.t, proposal.draw(16, step=6, seed=2).t)
    assert not torch.equal(first.t, proposal.draw(16, step=5, seed=3).t)


def test_times_are_float32_and_open():
    times = Proposal(LogitNormal(0, 10)).draw(10_000, step=0, seed=0)
    assert times.t.dtype == times.weight.dtype == torch.float32
    assert ((times.t > 0) & (times.t < 1)).all()
    assert times.weight.isfinite().all()
    weighted = Proposal(Uniform(), LogitNormal(0, 10)).draw(10_000, step=0, seed=0)
    assert weighted.weight.isfinite().all()


def test_weights_are_exactly_one_when_the_target_is_drawn():
    assert (Proposal(LogitNormal(0, 1)).draw(64, step=0, seed=0).weight == 1).all()
    assert (Proposal(FLOORED, FLOORED).draw(64, step=0, seed=0).weight == 1).all()


def test_weights_survive_rounding_at_a_truncated_end():
    # The float32 nearest to 0.2 lies above it: a hundredth of these times round out of the support.
    proposal = Proposal(Truncated(Uniform(), 0.2 - 1e-6, 0.2), Truncated(Uniform(), 0.2 - 2e-6, 0.2))
    times = proposal.draw(4000, step=0, seed=0)
    assert (times.t.double() > 0.2).any()
    assert set(times.weight.unique().tolist()) == {0.0, 2.0}


# The loss of the optimal velocity on N(0, 1) data, whose mean over uniform t is pi / 2.
def unit_gaussian_loss(t: torch.Tensor) -> torch.Tensor:
    return 1 / (t**2 + (1 - t) ** 2)


@each_spacing
@pytest.mark.parametrize(
    "density",
    [FLOORED, Mixture(LogitNormal(-0.75, 1), 0.02), Tabulated([0, 0.3, 1], [1, 5, 1])],
    ids=repr,
)
def test_weights_preserve_the_objective(density, spacing):
    proposal = Proposal(Uniform(), density, spacing)
    means = []
    for step in range(400):
        times = proposal.draw(256, step=step, seed=4)
        means.append(float((times.weight * unit_gaussian_loss(times.t)).sum() / len(times)))
    error = np.std(means) / len(means) ** 0.5
    assert abs(np.mean(means) - math.pi / 2) < 5 * error
    assert error < 0.01


def test_without_weights_the_objective_moves():
    moved = unit_gaussian_loss(draws(Proposal(LogitNormal(0, 1), spacing="stratified"), 4096, 10)).mean()
    kept = unit_gaussian_loss(draws(Proposal(Uniform(), spacing="stratified"), 4096, 10)).mean()
    assert float(moved) == pytest.approx(1.7413, abs=1e-4)
    assert float(kept) == pytest.approx(1.5708, abs=1e-4)


@pytest.mark.parametrize(
    ("target", "density"),
    [
        (Uniform(), FLOORED),
        (LogitNormal(-0.75, 1), Mixture(Uniform(), 0.5)),
        (Truncated(Uniform(), 0.01, 0.99), FLOORED),
        (Tabulated([0, 0.5, 1], [0, 1, 0]), Tabulated([0, 0.2, 1], [0, 1, 0])),
        (LogitNormal(0, 1), None),
    ],
    ids=repr,
)
def test_check_finds_unbiased_weights(target, density):
    check = Proposal(target, density).check()
    assert check.error < 3e-4
    assert check.mean == pytest.approx(1, abs=3e-4)
    assert check.second_moment >= 1 - 1e-6


def test_check_measures_the_cost_of_the_weights():
    # Target 1, density 2 t on [0.5, 1] folded: E[w^2] = integral of 1 / q.
    check = Proposal(Uniform(), Tabulated([0, 1], [1, 3])).check()
    assert check.second_moment == pytest.approx(math.log(3), abs=1e-6)  # 1 / (0.5 + t) over [0, 1]
    assert check.integrals["t"] == pytest.approx((0.5, 0.5), abs=1e-8)


@pytest.mark.parametrize(
    "density",
    [
        Truncated(Uniform(), 0.01, 1),
        Truncated(Uniform(), 0, 0.99),
        Tabulated([0, 0.4, 0.4001, 0.4002, 1], [1, 0, 0, 0, 1]),
        Tabulated([0.1, 1], [1, 1]),
    ],
    ids=repr,
)
def test_a_density_that_misses_the_target_raises(density):
    with pytest.raises(UserError, match=r"never draws t in .*mixture"):
        Proposal(Uniform(), density)
    assert Proposal(density, Uniform()).check().error < 1e-3
    Proposal(density, density)


def test_describe_is_what_the_run_header_prints():
    header = Proposal(Uniform(), FLOORED, "stratified").describe()
    assert header["target"] == "uniform"
    assert header["density"] == "mixture(logit_normal(0, 1), 0.1)"
    assert header["spacing"] == "stratified"
    assert [(band["low"], band["high"]) for band in header["bands"]] == [
        (k / 10, (k + 1) / 10) for k in range(10)
    ]
    assert sum(band["density"] for band in header["bands"]) == pytest.approx(1)
    assert all(band["target"] == pytest.approx(0.1) for band in header["bands"])
    assert header["bands"][9]["density"] == pytest.approx(0.9 * 0.0140022 + 0.01, abs=1e-7)
    assert header["max_weight"] == pytest.approx(10)
    assert Proposal(LogitNormal(0, 1)).describe()["max_weight"] == 1


def test_the_largest_weight_is_found_close_to_the_ends_too():
    spike = Mixture(LogitNormal(14, 0.5), 0.5)
    peak = float(spike.pdf(1 - torch.logspace(-9, -4, 10_000, dtype=torch.float64)).max())
    assert Proposal(spike, Uniform()).describe()["max_weight"] == pytest.approx(peak, rel=0.02)
    # Both densities vanish at the ends; the ratio is largest in the middle.
    wide = Proposal(LogitNormal(0, 1), LogitNormal(0, 2))
    assert wide.describe()["max_weight"] == pytest.approx(2, abs=1e-6)


def test_unbounded_weights_are_reported():
    assert Proposal(Uniform(), LogitNormal(0, 1)).describe()["max_weight"] == math.inf


def test_bad_arguments_raise():
    with pytest.raises(UserError, match="unknown spacing 'systematic': use one of independent, stratified"):
        Proposal(Uniform(), spacing="systematic")
    with pytest.raises(ValueError, match="batch_size = 0"):
        Proposal(Uniform()).draw(0, step=0, seed=0)
    with pytest.raises(ValueError, match="step = -1"):
        Proposal(Uniform()).draw(1, step=-1, seed=0)
    with pytest.raises(ValueError, match=r"must both be \(B,\)"):
        Times(torch.rand(4), torch.ones(4, 1))


def test_weights_of_a_density_by_bands_keep_the_mean():
    """Ten bands with losses 1 to 10, drawn in proportion to the loss with 0.1% uniform (a known example)."""
    loss = torch.arange(1, 11, dtype=torch.float64)
    masses = 0.999 * loss / loss.sum() + 0.001 / 10
    density = Piecewise([k / 10 for k in range(11)], masses.tolist())
    middle = (torch.arange(10, dtype=torch.float64) + 0.5) / 10
    share = torch.tensor([density.mass(k / 10, (k + 1) / 10) for k in range(10)], dtype=torch.float64)
    assert share[[0, 9]].tolist() == pytest.approx([0.0182636, 0.1817364], abs=1e-7)
    weight = Proposal(Uniform(), density)._weight(middle)
    assert weight[[0, 9]].tolist() == pytest.approx([5.47536, 0.550248], rel=1e-5)
    assert float((share * weight * loss).sum()) == pytest.approx(5.5, abs=1e-12)


def test_draws_are_handed_out_once():
    """Whoever changes what was drawn changes no later draw, of the same step or another."""
    proposal = Proposal(Uniform(), Mixture(LogitNormal(0, 1), 0.1), "stratified")
    first = [proposal.draw(8, step=step, seed=3) for step in range(5)]
    kept = [(times.t.clone(), times.weight.clone()) for times in first]
    for times in first:
        times.t.zero_()
        times.weight.zero_()
    for step in (4, 0, 2):
        again = proposal.draw(8, step=step, seed=3)
        assert torch.equal(again.t, kept[step][0])
        assert torch.equal(again.weight, kept[step][1])
    assert torch.equal(proposal.draw(8, step=2**63 + 1, seed=3).t, proposal.draw(8, step=2**63 + 1, seed=3).t)


@pytest.mark.parametrize("density", [LogitNormal(0, 10), Mode(1.7519)], ids=str)
def test_weights_are_the_ratio_at_the_drawn_times(density):
    # Steep where many are drawn: polynomials that follow the times need not follow these weights.
    count = 20_000
    t = density.draw(uniform(3, "time", 0, count), torch.float64)
    weight = Proposal(Uniform(), density).draw(count, step=0, seed=3).weight
    torch.testing.assert_close(weight, (1 / density.pdf(t)).float(), rtol=1e-6, atol=0)


def test_a_draw_never_looks_at_the_device():
    # A tensor of the meta device raises when it is read.
    for density in (None, FLOORED):
        times = Proposal(Uniform(), density, "stratified").draw(8, step=0, seed=0, device="meta")
        assert times.t.device.type == times.weight.device.type == "meta"
