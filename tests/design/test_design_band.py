"""The confidence band: the bootstrap's spread, coverage of a known density, and the fits' standard errors."""

import math
from dataclasses import replace

import pytest
import torch
from example_sources import GRID, from_blocks, measured, noisy_blocks, posterior, slope
from hypothesis import given, settings
from hypothesis import strategies as st

from flowtempo.design import design, nearest_logit_normal
from flowtempo.design.bootstrap import LEVEL, band_of, resampled, thinned
from flowtempo.design.curve import curve_over_t, time_grid
from flowtempo.errors import UserError
from flowtempo.interpolants import Linear

TRUTH = 1 / (1 + GRID.exp())


def seeded(seed):
    return torch.Generator().manual_seed(seed)


def test_resamples_spread_as_students_t_around_the_mean_and_keep_the_correlation():
    profile = from_blocks(noisy_blocks(TRUTH, seeded(0), blocks=12))
    curves = resampled(profile, 6000, seed=3)
    assert curves.shape == (6000, 65)
    deviation = (curves - profile.mean) / profile.stderr
    # B = 12: variance (B - 1) / (B - 3) of Student's t with 11 degrees of freedom.
    torch.testing.assert_close(
        deviation.std(0), torch.full((65,), math.sqrt(11 / 9), dtype=torch.float64), rtol=0.05, atol=0
    )
    assert float(deviation.mean(0).abs().max()) < 0.06
    rows = profile.without - profile.without.mean(0)
    torch.testing.assert_close(torch.corrcoef(curves.T), torch.corrcoef(rows.T), rtol=0, atol=0.06)


def test_noise_that_is_not_in_the_blocks_widens_them_and_a_jackknife_bias_does_not_move_them():
    profile = from_blocks(noisy_blocks(TRUTH, seeded(0)))
    wide = replace(profile, stderr=3 * profile.stderr)
    moved = replace(profile, without=profile.without * 0.9)
    curves = resampled(profile, 4000, seed=0)
    torch.testing.assert_close(
        resampled(wide, 4000, seed=0) - profile.mean, 3 * (curves - profile.mean), rtol=1e-9, atol=1e-12
    )
    assert float(((resampled(moved, 4000, seed=0).mean(0) - profile.mean) / profile.stderr).abs().max()) < 0.1


def test_resamples_are_not_negative():
    """The mean is two standard errors above zero."""
    curves = TRUTH * torch.tensor([0.0, 1.0, 0.0, 3.0], dtype=torch.float64)[:, None]
    rows = resampled(from_blocks(curves), 400, seed=0)
    assert bool((rows >= 0).all())
    assert bool((rows == 0).any())


def test_resamples_are_a_function_of_the_seed():
    profile = from_blocks(noisy_blocks(TRUTH, seeded(0)))
    assert torch.equal(resampled(profile, 50, seed=1), resampled(profile, 50, seed=1))
    pair = torch.stack([resampled(profile, 400, seed=seed)[:, 30] for seed in (1, 2)])
    assert abs(float(torch.corrcoef(pair)[0, 1])) < 0.2


@pytest.mark.parametrize("reach", [0.01, 1.0, 20.0])
@pytest.mark.parametrize("blocks", [8, 32])
def test_band_covers_the_true_density_at_its_level(reach, blocks):
    """The truth is CosMap; every repetition is a new measurement of N(0, I) with B blocks."""
    generator = seeded(blocks)
    t = torch.linspace(0, 1, 41, dtype=torch.float64)
    # On a coarse grid of t, for speed; the same grid for the truth.
    log_snr = Linear().log_snr(t)
    factor = 1 / ((1 - t) ** 2 + t**2)

    def density(curves):
        # A posterior variance relative to that of N(0, I), as `VarianceProfile.ratio` interpolates it.
        ratio = curves * (1 + GRID.exp())
        place = torch.searchsorted(GRID, log_snr.clamp(GRID[0], GRID[-1])).clamp(1, 64)
        weight = ((log_snr.clamp(GRID[0], GRID[-1]) - GRID[place - 1]) / (GRID[1] - GRID[0])).clamp(0, 1)
        values = factor * torch.lerp(ratio[..., place - 1], ratio[..., place], weight)
        return values / torch.trapezoid(values, t)[..., None]

    true = density(TRUTH)
    covered = []
    for repetition in range(150):
        profile = from_blocks(noisy_blocks(TRUTH, generator, blocks=blocks, reach=reach))
        band = band_of(t, density(resampled(profile, 200, seed=repetition)))
        covered.append(((band.low <= true) & (true <= band.high)).double().mean())
    assert LEVEL == 0.95
    assert 0.93 < float(torch.stack(covered).mean()) < 0.97


def test_a_design_bands_the_whole_rule():
    profile = from_blocks(noisy_blocks(TRUTH, seeded(1)))
    t, path = time_grid(), Linear()
    floored = []
    for mean in resampled(profile, 40, seed=7):
        root = curve_over_t(replace(profile, mean=mean), path, "velocity", t).mean.sqrt()
        floored.append(0.8 * root / torch.trapezoid(root, t) + 0.2)
    points = thinned(t)
    expected = band_of(t[points], torch.stack(floored)[:, points])
    made = design(profile, rule="importance", floor=0.2, resamples=40, seed=7)
    assert len(made.band.t) == 257
    assert made.band.t[0] == 0
    assert made.band.t[-1] == 1
    assert bool(torch.isin(made.band.t, made.density.grid).all())
    torch.testing.assert_close(made.band.low, expected.low)
    torch.testing.assert_close(made.band.high, expected.high)


def test_standard_errors_of_the_fit_are_the_spread_over_measurements():
    generator = seeded(2)
    truth = slope(1.0)

    def again():
        return from_blocks(
            noisy_blocks(truth, generator, blocks=32),
            lambda mean, **more: measured("gradient_second_moment", mean, **more),
        )

    told, means, stds = [], [], []
    for repetition in range(40):
        made = design(again(), rule="importance", resamples=100 if repetition < 5 else 0)
        means.append(made.fit.mean)
        stds.append(made.fit.std)
        if repetition < 5:
            told.append((made.fit.mean_stderr, made.fit.std_stderr))
    told = torch.tensor(told).mean(0)
    assert float(told[0]) == pytest.approx(float(torch.tensor(means).std()), rel=0.3)
    assert float(told[1]) == pytest.approx(float(torch.tensor(stds).std()), rel=0.3)


def test_without_blocks_there_is_no_band():
    for made in (design(posterior()), design(from_blocks(noisy_blocks(TRUTH, seeded(0))), resamples=0)):
        assert made.band is None
        assert made.fit.mean_stderr is None
        assert made.fit.std_stderr is None
    with pytest.raises(UserError, match="resamples = 3: use 40 or more"):
        design(posterior(), resamples=3)


def test_resamples_without_a_density_do_not_count():
    """One block of eight saw anything: a third of the resamples is zero everywhere."""
    curves = TRUTH * torch.eye(8, dtype=torch.float64)[:, :1]
    profile = from_blocks(curves)
    assert bool((resampled(profile, 200, seed=0) == 0).all(1).any())
    band = design(profile).band
    assert bool(torch.isfinite(band.low).all())
    assert bool(torch.isfinite(band.high).all())


@settings(max_examples=6, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    noise=st.floats(0.0, 1.5),
    floor=st.floats(0.0, 1.0),
    rule=st.sampled_from(["paper", "importance", "neyman"]),
    high=st.sampled_from([1.0, 0.7]),
)
def test_a_design_is_a_density_inside_its_band(seed, noise, floor, rule, high):
    curves = noisy_blocks(TRUTH, seeded(seed), noise=noise).clamp(min=0)
    made = design(from_blocks(curves), rule=rule, floor=floor, high=high, resamples=60, seed=seed)
    t = made.density.grid
    assert float(torch.trapezoid(made.density.values, t)) == pytest.approx(1, abs=1e-9)
    band = made.band
    assert bool((band.low <= band.high).all())
    assert bool((band.low >= floor / high - 1e-9).all())
    slack = 1e-9 * made.density.values.max()
    inside = (made.density.pdf(band.t) >= band.low - slack) & (made.density.pdf(band.t) <= band.high + slack)
    assert float(inside.double().mean()) > 0.9
    assert made.fit == replace(
        nearest_logit_normal(made.density),
        mean_stderr=made.fit.mean_stderr,
        std_stderr=made.fit.std_stderr,
    )
