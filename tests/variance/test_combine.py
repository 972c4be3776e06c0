"""Means, pools, comparisons and a denoiser in the bracket, against simulations of what their errors claim."""

import math
from dataclasses import replace

import pytest
import torch

from flowtempo.errors import UserError
from flowtempo.variance import Bracket, VarianceProfile, in_sample, leave_one_out
from flowtempo.variance.combine import average, pool
from flowtempo.variance.compare import compare, rank_correlation
from flowtempo.variance.denoiser import check_order, with_denoiser

GRID = torch.tensor([-2.0, 0.0, 2.0], dtype=torch.float64)


def profile(mean, stderr=0.1, without=None, **changes):
    mean = torch.as_tensor(mean, dtype=torch.float64)
    content = {
        "quantity": "posterior_variance",
        "method": "made up",
        "bound": "upper",
        "log_snr": GRID,
        "mean": mean,
        "stderr": torch.full_like(mean, stderr) if isinstance(stderr, float) else stderr,
        "dim": 4,
        "second_moment": 1.0,
        "without": without,
    }
    return VarianceProfile(**(content | changes))


def of_rows(values, blocks=16, **changes):
    """A profile of the mean of values (n, L), with the jackknife over blocks of them."""
    means = values.reshape(blocks, -1, values.shape[1]).mean(1)
    without = (means.sum(0) - means) / (blocks - 1)
    stderr = (means.var(0) / blocks).sqrt()
    return profile(means.mean(0), stderr, without, **changes)


@pytest.fixture
def rng():
    return torch.Generator().manual_seed(0)


def draw(rng, *shape):
    return torch.randn(*shape, generator=rng, dtype=torch.float64)


def test_the_mean_over_phases_has_the_error_of_the_mean_image(rng):
    """Three curves of the same images: averaging images first or curves first is the same, to rounding."""
    common = draw(rng, 320, 3) + 5
    phases = [common + 0.3 * draw(rng, 320, 3), 2 * common, common + 1]
    weights = [1.0, 2.0, 3.0]
    made = average([of_rows(phase, data={"fingerprint": "a"}) for phase in phases], weights)
    whole = of_rows(sum(w / 6 * phase for w, phase in zip(weights, phases, strict=True)))
    for name in ("mean", "stderr", "without"):
        torch.testing.assert_close(getattr(made, name), getattr(whole, name), rtol=1e-12, atol=0)


@pytest.mark.parametrize("change", [{"data": {"fingerprint": "b"}}, {"blocks": 8}])
def test_a_mean_without_common_rows_takes_the_errors_as_fully_correlated(rng, change):
    values = [draw(rng, 320, 3) + 5 for _ in range(2)]
    first, second = of_rows(values[0], data={"fingerprint": "a"}), of_rows(values[1], **change)
    made = average([first, second])
    torch.testing.assert_close(made.stderr, (first.stderr + second.stderr) / 2)
    assert made.without is None
    assert "fully correlated" in made.method


def test_noise_outside_the_rows_is_kept(rng):
    """In-sample errors hold a part from shared noises that deleting points does not show."""
    base = of_rows(draw(rng, 320, 3) + 5)
    noisy = replace(base, stderr=(base.stderr.square() + 0.04).sqrt())
    torch.testing.assert_close(average([noisy, noisy]).stderr, noisy.stderr)
    pooled = pool([noisy, noisy], [1, 1]).stderr
    torch.testing.assert_close(pooled, (base.stderr.square() + 0.02).sqrt())


def test_a_mean_keeps_what_is_common_and_lists_what_is_not():
    changes = {"quantity": "loss", "bound": "estimate"}
    made = average(
        [
            profile(
                [1.0, 2, 3], model={"interpolant": "linear", "step": step}, counts={"images": 8}, **changes
            )
            for step in (1000, 5000)
        ]
    )
    assert made.model == {"interpolant": "linear", "step": [1000, 5000]}
    assert made.counts == {"images": 8}


def test_the_pooled_jackknife_is_honest(rng):
    """Two groups of unlike size, spread and mean: the variance that it claims is the one that is seen."""
    means, claimed = [], []
    for _ in range(600):
        groups = [1.0 + 0.5 * draw(rng, 64, 3), 3.0 + 2.0 * draw(rng, 192, 3)]
        pooled = pool([of_rows(group) for group in groups], [64, 192])
        means.append(pooled.mean)
        claimed.append(pooled.stderr.square())
    seen, claim = torch.stack(means).var(0), torch.stack(claimed).mean(0)
    exact = (0.5**2 * 64 + 2.0**2 * 192) / 256**2
    # A variance from 600 draws is off by 6 %; three values, three errors.
    torch.testing.assert_close(seen, torch.full_like(seen, exact), rtol=0.18, atol=0)
    torch.testing.assert_close(claim, torch.full_like(claim, exact), rtol=0.06, atol=0)
    torch.testing.assert_close(
        torch.stack(means).mean(0), torch.full((3,), 2.5, dtype=torch.float64), rtol=0.01, atol=0
    )


@pytest.mark.slow
def test_pooled_posterior_estimates_of_classes_are_honest():
    """On Gaussian classes, leave-one-out per class, pooled: the spread against what is claimed."""
    grid = torch.tensor([-1.0, 1.0], dtype=torch.float64)
    means, claimed = [], []
    rng = torch.Generator().manual_seed(1)
    for seed in range(60):
        parts = [
            leave_one_out(scale * torch.randn(64, 2, generator=rng), grid, seed=2 * seed + index)
            for index, scale in enumerate((0.5, 2.0))
        ]
        pooled = pool(parts, [64, 64], quantity="class_posterior_variance")
        means.append(pooled.mean)
        claimed.append(pooled.stderr.square())
    seen, claim = torch.stack(means).var(0), torch.stack(claimed).mean(0)
    # A variance from 60 draws is off by 18 %.
    assert bool(((claim / seen > 0.55) & (claim / seen < 1.8)).all()), claim / seen
    assert pooled.quantity == "class_posterior_variance"


def test_a_pool_weighs_images_and_not_dimensions(rng):
    small = of_rows(draw(rng, 32, 3) + 5, dim=4, second_moment=2.0, counts={"points": 32, "blocks": 16})
    large = of_rows(draw(rng, 96, 3) + 5, dim=16, second_moment=1.0, counts={"points": 96, "blocks": 16})
    made = pool([small, large], [32, 96], data={"name": "both"})
    torch.testing.assert_close(made.mean, small.mean / 4 + large.mean * 3 / 4)
    assert (made.dim, made.second_moment) == (13, 1.25)
    assert made.counts == {"points": 128, "blocks": 16, "groups": 2}
    assert made.data == {"name": "both"}


def test_a_pool_with_other_numbers_of_rows_adds_in_quadrature(rng):
    first, second = of_rows(draw(rng, 32, 3) + 5), of_rows(draw(rng, 32, 3) + 5, blocks=8)
    made = pool([first, second], [1, 3])
    torch.testing.assert_close(made.stderr, torch.hypot(first.stderr, 3 * second.stderr) / 4)
    assert made.without is None


def test_effective_sizes_average_as_weights_of_the_noised_point():
    ess = [torch.tensor([2.0, 4, 8]), torch.tensor([4.0, 4, 2])]
    made = average([profile([1.0, 1, 1], ess=each) for each in ess])
    torch.testing.assert_close(made.ess, torch.tensor([8 / 3, 4, 3.2], dtype=torch.float64))
    assert average([profile([1.0, 1, 1], ess=ess[0]), profile([1.0, 1, 1])]).ess is None


@pytest.mark.parametrize(
    ("profiles", "weights", "message"),
    [
        ([], None, "no profiles"),
        ([profile([1.0, 1, 1]), profile([1.0, 1, 1], quantity="loss")], None, "one quantity .* and loss"),
        ([profile([1.0, 1, 1]), profile([1.0, 1, 1], bound="lower")], None, "one bound .*upper and lower"),
        ([profile([1.0, 1, 1]), profile([1.0, 1, 1], log_snr=GRID + 1)], None, "different log-SNR grids"),
        ([profile([1.0, 1, 1])], [1.0, 1.0], "1 profiles need as many weights, not 2"),
        ([profile([1.0, 1, 1])], [0.0], "positive"),
        ([profile([1.0, 1, 1])] * 2, [-1.0, 2.0], "not negative"),
        ([profile([1.0, 1, 1])], [math.nan], "finite"),
    ],
)
def test_what_does_not_fit_together_is_an_error(profiles, weights, message):
    with pytest.raises(UserError, match=message):
        average(profiles, weights)


def test_paired_errors_are_those_of_the_paired_values(rng):
    common = draw(rng, 320, 3) + 5
    other = 1.1 * common + 0.01 * draw(rng, 320, 3)
    made = compare(of_rows(common), of_rows(other))
    assert made.paired
    first, second = of_rows(common), of_rows(other)
    torch.testing.assert_close(made.difference, first.mean - second.mean)
    torch.testing.assert_close(made.difference_stderr, of_rows(common - other + 9).stderr)
    apart = of_rows(common - first.mean / second.mean * other + 9)
    torch.testing.assert_close(made.ratio_stderr, apart.stderr / second.mean)
    assert made.differ


def test_independent_errors_add_and_the_ratio_has_the_error_that_is_seen(rng):
    ratios, claimed = [], []
    for _ in range(1000):
        first = of_rows(4 + draw(rng, 64, 3), data={"name": "first"})
        second = of_rows(8 + draw(rng, 64, 3), data={"name": "second"})
        made = compare(first, second)
        ratios.append(made.ratio)
        claimed.append(made.ratio_stderr.square())
    assert not made.paired
    torch.testing.assert_close(made.difference_stderr, torch.hypot(first.stderr, second.stderr))
    torch.testing.assert_close(torch.stack(claimed).mean(0), torch.stack(ratios).var(0), rtol=0.15, atol=0)


def test_equal_curves_do_not_differ_and_say_so():
    same = compare(profile([1.0, 2, 3]), profile([1.0, 2, 3]))
    assert (same.largest[1], same.differ, same.rank_correlation) == (0, False, 1)
    assert "1 to 1 times" in same.summary()
    assert "no difference is shown" in same.summary()
    exact = compare(profile([1.0, 2, 3], 0.0), profile([1.0, 2, 4], 0.0))
    assert exact.largest == (2.0, -math.inf)


def test_the_summary_names_the_largest_difference():
    made = compare(profile([2.0, 2, 3]), profile([1.0, 2, 3.2]))
    assert made.largest == (-2.0, pytest.approx(1 / math.hypot(0.1, 0.1)))
    assert made.summary() == (
        "The first is 0.94 to 2 times the second. The largest difference is 7.1 standard errors, at log-SNR"
        " −2: they differ there. Rank correlation over the grid 0.87."
    )


def test_rank_correlation_is_spearmans_with_ties():
    grid = torch.arange(5, dtype=torch.float64)
    first = profile([1.0, 2, 2, 4, 5], log_snr=grid, quantity="gradient_norm")
    second = profile([3.0, 1, 2, 5, 5], log_snr=grid, quantity="loss")
    # Ranks 1 2.5 2.5 4 5 and 3 1 2 4.5 4.5, about their mean 3, by hand.
    assert rank_correlation(first, second) == pytest.approx((0.5 * 2 + 0.5 + 1.5 + 3) / 9.5)
    assert math.isnan(rank_correlation(first, profile([1.0] * 5, log_snr=grid, quantity="loss")))


def test_rank_correlation_on_another_grid_interpolates_inside_it():
    fine = torch.linspace(-1, 5, 61, dtype=torch.float64)
    coarse = torch.tensor([0.0, 3, 4], dtype=torch.float64)
    first = profile((fine - 1).square(), log_snr=fine, quantity="loss")
    second = profile([1.0, 2, 9], log_snr=coarse, quantity="loss")
    assert rank_correlation(first, replace(first, log_snr=fine)) == pytest.approx(1)
    assert rank_correlation(second, first) == pytest.approx(1)
    with pytest.raises(UserError, match="do not overlap"):
        rank_correlation(first, replace(second, log_snr=coarse + 50))


def test_unlike_quantities_have_no_ratio():
    with pytest.raises(UserError, match=r"loss and a gradient_norm have no common unit.*rank_correlation"):
        compare(profile([1.0, 1, 1], quantity="loss"), profile([1.0, 1, 1], quantity="gradient_norm"))
    compare(profile([1.0, 1, 1]), profile([1.0, 1, 1], quantity="class_posterior_variance"))


def bracket(upper, by_class=None):
    return Bracket(profile([0.1, 0.1, 0.1], bound="lower"), upper, (upper,), by_class)


def test_a_denoiser_lowers_the_edge_where_it_is_clearly_lower():
    upper, denoiser = profile([1.0, 1.0, 1.0]), profile([0.5, 0.8, 1.5], 0.05, method="denoiser")
    made = with_denoiser(bracket(upper), denoiser)
    # 0.2 is less than 2 of the difference's standard errors of 0.112.
    torch.testing.assert_close(made.upper.mean, torch.tensor([0.5, 1.0, 1.0], dtype=torch.float64))
    torch.testing.assert_close(made.upper.stderr, torch.tensor([0.05, 0.1, 0.1], dtype=torch.float64))
    assert made.upper.method == "least of made up, denoiser"
    assert made.candidates == (upper, denoiser)


@pytest.mark.parametrize("blocks", [10, 32])
@pytest.mark.parametrize("apart", [-1.0, 0.0, 0.7])
def test_choosing_the_denoiser_is_hardly_optimistic(blocks, apart):
    """The edge's mean over many measurements against the least of the two true curves."""
    rng, count = torch.Generator().manual_seed(blocks), 100_000
    grid = torch.arange(count, dtype=torch.float64) * 1e-4
    # Every grid point is a measurement of its own; the standard error of the difference is 1.
    curves = [10 + level + math.sqrt(blocks / 2) * draw(rng, blocks, count) for level in (0.0, -apart)]
    upper, denoiser = (
        of_rows(curve, blocks, log_snr=grid, data={"part": str(index)}) for index, curve in enumerate(curves)
    )
    edge = with_denoiser(bracket(upper), denoiser).upper.mean.mean()
    degrees = 2 * (blocks - 1)
    bound = (1 + 4 / degrees) ** (-degrees / 2) / math.sqrt(2 * math.pi)
    bias = float(edge) - (10 + min(0.0, -apart))
    assert bias > -(bound + 4 / math.sqrt(count))
    if apart == 0:
        assert bias == pytest.approx(-bound, abs=4 / math.sqrt(count))


def test_the_edges_rows_give_its_error_with_any_number_of_blocks(rng):
    for blocks, data in ((16, {}), (8, {}), (16, {"fingerprint": "held out"})):
        upper = of_rows(5 + draw(rng, 320, 3))
        denoiser = of_rows(torch.tensor([1.0, 1, 9]) + draw(rng, 320, 3), blocks, data=data)
        edge = with_denoiser(bracket(upper), denoiser).upper
        assert edge.without.shape == ((16 if blocks == 16 and not data else 16 + blocks), 3)
        spread = edge.without - edge.without.mean(0)
        rows = len(spread)
        torch.testing.assert_close(((rows - 1) / rows * spread.square().sum(0)).sqrt(), edge.stderr)
        # What comes from other data varies independently.
        cross = (spread[:, 0] * spread[:, 2]).sum()
        assert (abs(float(cross)) < 1e-15) == (len(spread) > 16)


def test_a_denoiser_on_another_grid_counts_inside_its_range_only():
    def gaussian(x):
        return 0.25 / (1 + 0.25 * x.exp())

    inner = torch.tensor([-1.0, 0.5, 1.5], dtype=torch.float64)
    rows = gaussian(inner) * torch.linspace(0.98, 1.02, 8, dtype=torch.float64)[:, None]
    upper = profile([1.0, 1, 1], 0.001, torch.ones(8, 3))
    denoiser = profile(gaussian(inner), 0.001, rows, log_snr=inner)
    edge = with_denoiser(bracket(upper), denoiser).upper
    torch.testing.assert_close(
        edge.mean, torch.tensor([1.0, float(gaussian(GRID[1])), 1.0], dtype=torch.float64)
    )
    torch.testing.assert_close(edge.without[:, 1], rows[:, 0] / gaussian(inner)[0] * gaussian(GRID[1]))


def test_a_class_conditional_denoiser_enters_by_class_only():
    kind = {"quantity": "class_posterior_variance"}
    denoiser = profile([0.2, 0.2, 0.2], 0.001, **kind)
    whole = bracket(profile([1.0, 1, 1], 0.001), bracket(profile([0.9, 0.9, 0.9], 0.001, **kind)))
    made = with_denoiser(whole, denoiser)
    assert made.upper is whole.upper
    assert made.by_class.upper.mean.tolist() == [0.2, 0.2, 0.2]
    with pytest.raises(UserError, match=r"was given labels.*measure with labels"):
        with_denoiser(bracket(profile([1.0, 1, 1])), denoiser)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"bound": "lower"}, "not the lower of a posterior_variance"),
        ({"quantity": "loss"}, "not the upper of a loss"),
        ({"dim": 5}, "5 dimensions, the bracket's 4"),
        ({"second_moment": 4.0}, "scale the data alike"),
    ],
)
def test_what_is_no_denoisers_error_is_refused(changes, message):
    with pytest.raises(UserError, match=message):
        with_denoiser(bracket(profile([1.0, 1, 1])), profile([0.2, 0.2, 0.2], **changes))


def test_inverted_edges_are_named():
    lower, upper = profile([1.0, 1.0, 1.0], 0.03, bound="lower"), profile([1.1, 0.81, 0.75], 0.04)
    # 0.19 and 0.25 above, of 0.05.
    assert check_order(Bracket(lower, upper)) == [2.0]


def test_a_real_bracket_compares_and_averages(rng):
    x = draw(rng, 64, 2)
    inside, outside = in_sample(x, GRID, seed=3), leave_one_out(x, GRID, seed=3)
    assert compare(inside, outside).paired
    assert average([inside, inside]).mean.tolist() == inside.mean.tolist()
