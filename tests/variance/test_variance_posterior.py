"""In-sample and leave-one-out against direct evaluations, closed forms and their own sampling spread."""

import math
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flowtempo.errors import UserError
from flowtempo.variance import in_sample, leave_one_out
from flowtempo.variance.estimate import everywhere
from flowtempo.variance.factorised import in_sample_estimate
from flowtempo.variance.held_out import leave_one_out_estimate
from flowtempo.variance.points import prepare

LOG_SNR = torch.tensor([-14.0, -6, -3, -1, 0, 1, 2, 3, 5, 9, 14], dtype=torch.float64)


def data(kind, generator):
    normal = torch.randn(40, 6, generator=generator, dtype=torch.float64)
    if kind == "shifted":
        return 0.5 * normal + 3
    if kind == "image":
        return normal.reshape(40, 1, 2, 3)
    if kind == "far apart":
        # The products of the factorised form underflow here while neighbours still share the weight.
        centres = torch.randn(8, 6, generator=generator, dtype=torch.float64) * 400
        return centres.repeat_interleave(5, 0) + 0.05 * normal
    return normal


@pytest.mark.parametrize("kind", ["plain", "shifted", "image", "far apart"])
@pytest.mark.parametrize("form", ["tower", "quadratic"])
def test_in_sample_is_the_published_formula(kind, form, formulas, rng):
    x = data(kind, rng)
    noises = torch.randn(5, 6, generator=rng, dtype=torch.float64)
    profile = in_sample(x, LOG_SNR, noises, form=form)
    expected = formulas.in_sample(x.flatten(1), noises, LOG_SNR, form)
    scale = profile.second_moment
    torch.testing.assert_close(profile.mean, expected.clamp(min=0), rtol=1e-6, atol=1e-14 * scale)


@pytest.mark.parametrize("form", ["tower", "quadratic"])
def test_underflow_does_not_lose_neighbours(form, formulas, rng):
    """Clusters so far apart that factorised products underflow, while points within one share weight."""
    x, grid = data("far apart", rng), LOG_SNR[LOG_SNR > 1]
    noises = torch.randn(5, 6, generator=rng, dtype=torch.float64)
    points = prepare(x, seed=0, centre=False)
    curve = in_sample_estimate(points, 40, grid, noises, form=form, seed=0).over(points, everywhere(points))
    expected = formulas.in_sample(x, noises, grid, form)
    torch.testing.assert_close(curve.mean, expected, rtol=1e-6, atol=1e-14 * points.second_moment)
    assert float(curve.mean[:3].abs().min()) > 0.02  # else there was nothing to lose
    assert float(curve.mean[-1].abs()) < (1e-30 if form == "tower" else 1e-9)


@pytest.mark.parametrize("kind", ["plain", "shifted", "image", "far apart"])
def test_leave_one_out_is_its_formula(kind, formulas, rng):
    x = data(kind, rng)
    noises = torch.randn(5, 6, generator=rng, dtype=torch.float64)
    expected = formulas.leave_one_out(x.flatten(1), noises, LOG_SNR)
    torch.testing.assert_close(leave_one_out(x, LOG_SNR, noises).mean, expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("kind", ["even", "neighbours far and close together"])
def test_float32_is_safe(kind, rng):
    """The same data in both precisions: the exponents that matter survive float32 up to log-SNR 14."""
    x = (torch.randn(300, 24, generator=rng) + 2).double()
    if kind == "neighbours far and close together":
        # Seen from the first eight points the others differ by less than a float32 of their distance.
        x[:8] *= 30
        x[8:] *= 0.003
    noises = torch.randn(4, 24, generator=rng, dtype=torch.float64)
    narrow, wide = (leave_one_out(data, LOG_SNR, noises) for data in (x.float(), x))
    torch.testing.assert_close(narrow.mean, wide.mean, rtol=1e-5, atol=0)
    if kind == "even":
        torch.testing.assert_close(narrow.stderr, wide.stderr, rtol=1e-4, atol=0)
    for form in ("tower", "quadratic"):
        narrow, wide = (in_sample(data, LOG_SNR, noises, form=form) for data in (x.float(), x))
        torch.testing.assert_close(narrow.mean, wide.mean, rtol=1e-5, atol=1e-6)


def test_blocks_and_chunks_do_not_change_the_sum(formulas, rng, monkeypatch):
    x = torch.randn(40, 6, generator=rng, dtype=torch.float64)
    noises = torch.randn(5, 6, generator=rng, dtype=torch.float64)
    whole = [in_sample(x, LOG_SNR, noises), leave_one_out(x, LOG_SNR, noises)]
    monkeypatch.setattr("flowtempo.variance.factorised._CHUNK_BYTES", 8 * 6 * 40 * 7)
    monkeypatch.setattr("flowtempo.variance.held_out._CHUNK_NUMBERS", 1700)
    monkeypatch.setattr("flowtempo.variance.points._ROWS_BYTES", 8 * 6 * 11)
    for before, after in zip(
        whole, [in_sample(x, LOG_SNR, noises), leave_one_out(x, LOG_SNR, noises)], strict=True
    ):
        torch.testing.assert_close(after.mean, before.mean, rtol=1e-12, atol=1e-15)
        torch.testing.assert_close(after.stderr, before.stderr, rtol=1e-9, atol=1e-15)


def test_every_point_stays_a_reference_of_few_queries(formulas, rng):
    x = torch.randn(64, 3, generator=rng, dtype=torch.float64)
    noises = torch.randn(4, 3, generator=rng, dtype=torch.float64)
    points = prepare(x, seed=5, centre=False)
    for form in ("tower", "leave_one_out"):
        run = in_sample_estimate if form == "tower" else leave_one_out_estimate
        some = run(points, 32, LOG_SNR, noises, seed=5)
        every = run(points, 64, LOG_SNR, noises, seed=5)
        torch.testing.assert_close(some.value, every.value[some.query], rtol=1e-9, atol=1e-15)
        assert len(some.query.unique()) == 32


def binary_mmse(log_snr):
    """MMSE of +-1 in white noise, 1 - E tanh(r^2 + r e) (Guo, Shamai & Verdu, 2005, equation 15)."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(201)
    r = np.exp(log_snr.numpy() / 2)[:, None]
    return torch.from_numpy(1 - (np.tanh(r**2 + r * nodes) * weights).sum(1) / math.sqrt(2 * math.pi))


def test_two_atoms_have_the_binary_mmse():
    """Copies keep their weight in the in-sample posterior."""
    x = torch.tensor([-1.0, 1.0], dtype=torch.float64).repeat(32)[:, None]
    grid = torch.tensor([-14.0, -6, -3, -1, 0, 1], dtype=torch.float64)
    true = binary_mmse(grid)
    for form, noises in (("tower", 400), ("quadratic", 40)):
        profile = in_sample(x, grid, noises, form=form)
        assert float(((profile.mean - true) / profile.stderr).abs().max()) < 4
        assert float((profile.mean - true).abs().max()) < 0.05
    assert profile.counts["copies"] == 62


def test_a_block_without_which_nothing_is_left_stays():
    """All points but one are equal: that one is every other's only reference."""
    x = torch.cat([torch.zeros(63, 1), torch.ones(1, 1)])
    profile = leave_one_out(x, LOG_SNR)
    torch.testing.assert_close(profile.mean, torch.ones(11, dtype=torch.float64))
    torch.testing.assert_close(profile.stderr, torch.zeros(11, dtype=torch.float64), atol=1e-6, rtol=0)


def test_leave_one_out_leaves_copies_out_too():
    x = torch.tensor([[-1.0], [1.0]]).repeat(32, 1)
    torch.testing.assert_close(leave_one_out(x, LOG_SNR).mean, torch.full((11,), 4.0, dtype=torch.float64))


@settings(max_examples=20, deadline=None)
@given(
    st.floats(0.1, 10.0),
    st.floats(-5.0, 5.0),
    st.integers(1, 5),
    st.integers(8, 40),
    st.integers(0, 2**32),
)
def test_units_shift_the_axis(scale, shift, dim, count, seed):
    """Data in other units is the same problem: G(c x + m; lam) = c^2 G(x; lam + 2 log c)."""
    x = torch.randn(count, dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    grid = torch.linspace(-6, 6, 7, dtype=torch.float64)
    for estimator in (lambda y, g: leave_one_out(y, g, 2), lambda y, g: in_sample(y - y.mean(0), g, 2)):
        plain, moved = estimator(x, grid), estimator(scale * x + shift, grid - 2 * math.log(scale))
        torch.testing.assert_close(moved.mean, scale**2 * plain.mean, rtol=1e-6, atol=1e-9)
        torch.testing.assert_close(moved.stderr, scale**2 * plain.stderr, rtol=1e-5, atol=1e-9)


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 6), st.integers(8, 40), st.integers(0, 2**32))
def test_all_profiles_are_finite_and_bounded(dim, count, seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, dim, generator=generator, dtype=torch.float64) * 3
    lower, upper = in_sample(x, None, 2), leave_one_out(x, None, 2)
    for profile in (lower, upper):
        assert len(profile.log_snr) == 65
        assert (profile.stderr[profile.mean > 0] >= 0).all()
    # No point is farther from a mean of points than from the farthest point.
    widest = float(torch.cdist(x, x).max()) ** 2 / dim
    assert float(upper.mean.max()) <= widest
    assert float(lower.mean.max()) <= widest
    assert float(lower.mean[-1]) < 0.01


def estimate(case, x, seed):
    grid = torch.tensor([-8.0, -2.0, -0.5, 2.0], dtype=torch.float64)
    if case == "leave one out":
        return leave_one_out(x, grid, 1, seed=seed)
    if case == "few queries":
        return in_sample(x, grid, 2, queries=32, seed=seed)
    if "shared noises" in case:
        noises = torch.randn(12, x.shape[1], generator=torch.Generator().manual_seed(10_000 + seed))
        return (leave_one_out if "leave" in case else in_sample)(x, grid, noises, seed=seed)
    return in_sample(x, grid, 2, form=case, seed=seed)


@pytest.mark.parametrize(
    ("case", "count", "dim"),
    [
        ("shared noises", 128, 1),
        ("leave one out, shared noises", 128, 1),
        ("leave one out", 64, 4),
        ("few queries", 64, 4),
        *(
            pytest.param(case, count, dim, marks=pytest.mark.slow)
            for case in ("tower", "quadratic", "leave one out", "shared noises", "few queries")
            for count, dim in ((200, 4), (48, 96))
        ),
    ],
)
def test_standard_errors_are_the_spread_over_data_sets(case, count, dim):
    """Points are queries and references at once, and noises may be shared: the error knows both.

    A plain standard error over queries is half of the spread where the posterior is broad.
    """
    generator = torch.Generator().manual_seed(0)
    profiles = [estimate(case, torch.randn(count, dim, generator=generator), seed) for seed in range(100)]
    means, errors = (
        torch.stack(curves) for curves in zip(*((p.mean, p.stderr) for p in profiles), strict=True)
    )
    seen = means.mean(0) > 1e-3  # where the in-sample posterior has not collapsed
    ratio = (errors.square().mean(0).sqrt() / means.std(0))[seen]
    # 100 repetitions know the spread to 7%; near the collapse the jackknife is on the safe side.
    assert float(ratio.min()) > 0.8, ratio
    assert float(ratio.max()) < 1.6, ratio
    inside = ((means - means.mean(0)).abs() < 2 * errors).double().mean(0)[seen]
    assert float(inside.min()) > 0.85, inside


@pytest.mark.parametrize("form", ["tower", "quadratic", "leave_one_out"])
def test_shared_noises_have_their_own_error(form, rng):
    """With the data held fast, the spread over sets of noises is what is added to the jackknife."""
    points = prepare(torch.randn(100, 2, generator=rng, dtype=torch.float64), seed=0)
    run = leave_one_out_estimate if form == "leave_one_out" else partial(in_sample_estimate, form=form)
    grid = torch.tensor([-3.0, 0.0, 2.0], dtype=torch.float64)
    means, variances = [], []
    for _ in range(60):
        noises = torch.randn(8, 2, generator=rng, dtype=torch.float64)
        estimate = run(points, 100, grid, noises, seed=0)
        means.append(estimate.value.mean(0))
        variances.append(estimate.noise_variance)
    ratio = torch.stack(variances).mean(0) / torch.stack(means).var(0)
    # 60 repetitions know a variance to 18%.
    assert float(ratio.min()) > 0.6, ratio
    assert float(ratio.max()) < 1.7, ratio


def test_seeds_decide_everything(rng):
    x = torch.randn(50, 3, generator=rng)
    state = torch.random.get_rng_state()
    first, again, other = (in_sample(x, LOG_SNR, 4, queries=20, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(first.mean, again.mean)
    assert torch.equal(first.stderr, again.stderr)
    assert not torch.equal(first.mean, other.mean)
    assert torch.equal(torch.random.get_rng_state(), state)


def test_progress_rises_to_one(rng):
    x = torch.randn(50, 3, generator=rng)
    for estimator in (in_sample, leave_one_out):
        seen = []
        estimator(x, LOG_SNR, 2, progress=seen.append)
        assert seen == sorted(seen)
        assert seen[-1] == 1.0


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int64, torch.float16, torch.bfloat16])
def test_other_types_are_read_as_their_values(dtype, rng):
    x = torch.randint(0, 100, (40, 3), generator=rng).to(dtype)
    grid = LOG_SNR - 6
    expected = leave_one_out(x.double(), grid, 2)
    torch.testing.assert_close(leave_one_out(x, grid, 2).mean, expected.mean, rtol=1e-5, atol=0)


GOOD = torch.randn(20, 3, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((torch.full((20, 3), torch.nan),), "NaN or infinite values, first in point 0"),
        ((GOOD.clone().index_fill_(0, torch.tensor([7]), math.inf),), "first in point 7"),
        ((GOOD[:1],), "at least 8 points"),
        ((torch.zeros(20, 0),), "at least 8 points"),
        ((torch.ones(20, 3),), "does not vary"),
        ((GOOD[:, 0],), "shape"),
        ((GOOD > 0,), "real tensor"),
        ((GOOD.numpy(),), "real tensor"),
        ((GOOD, torch.tensor([1.0, 0.0])), "strictly increasing"),
        ((GOOD, torch.tensor([math.nan])), "finite"),
        ((GOOD, torch.tensor([60.0])), "within"),
        ((GOOD, LOG_SNR, 0), "noises = 0"),
        ((GOOD, LOG_SNR, 2.5), "noises = 2.5"),
        ((GOOD, LOG_SNR, torch.zeros(4, 2)), r"\(K, 3\)"),
        ((GOOD, LOG_SNR, torch.zeros(1, 3)), "K >= 2"),
        ((GOOD, LOG_SNR, torch.full((4, 3), math.inf)), "noises hold NaN"),
    ],
)
@pytest.mark.parametrize("estimator", [in_sample, leave_one_out])
def test_bad_input_is_named(estimator, arguments, told):
    with pytest.raises(UserError, match=told):
        estimator(*arguments)


@pytest.mark.parametrize("queries", [1, 21, True, 3.0])
def test_queries_must_fit_the_data(queries):
    with pytest.raises(UserError, match="queries"):
        in_sample(GOOD, LOG_SNR, 2, queries=queries)


def test_unknown_form_is_named():
    with pytest.raises(UserError, match="tower, quadratic"):
        in_sample(GOOD, LOG_SNR, 2, form="cubic")


def test_the_jackknife_deletes_blocks_exactly_in_leave_one_out(formulas, rng):
    """What is left without a block is the estimate of the data set without it."""
    x = torch.randn(32, 3, generator=rng, dtype=torch.float64)
    noises = torch.randn(3, 3, generator=rng, dtype=torch.float64)
    points = prepare(x, seed=0)
    curve = leave_one_out_estimate(points, 32, LOG_SNR, noises, seed=0).over(points, everywhere(points))
    for block in (0, points.blocks - 1):
        left = torch.cat([points.x[: points.starts[block]], points.x[points.starts[block + 1] :]])
        expected = formulas.leave_one_out(left, noises, LOG_SNR)
        torch.testing.assert_close(curve.without[block], expected, rtol=1e-9, atol=0)


def test_the_jackknife_of_the_tower_is_right_to_first_order(formulas, rng):
    """What is left without a block differs from the estimate of the rest by less and less."""
    errors = []
    for count in (64, 1024):
        x = torch.randn(count, 2, generator=rng, dtype=torch.float64)
        noises = torch.randn(2, 2, generator=rng, dtype=torch.float64)
        points = prepare(x, seed=0)
        grid = torch.tensor([-2.0, 0.0], dtype=torch.float64)
        curve = in_sample_estimate(points, count, grid, noises, seed=0).over(points, everywhere(points))
        left = points.x[points.starts[1] :]
        expected = formulas.in_sample(left, noises, grid, "tower")
        errors.append(float(((curve.without[0] - expected) / curve.stderr).abs().max()))
    assert errors[0] < 0.1
    assert errors[1] < 0.02
