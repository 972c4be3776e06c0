"""The target variance over t against the Gaussian closed form, for every interpolant and prediction."""

import itertools
import math

import pytest
import torch

from flowtempo.design import curve_over_t, variance_curve
from flowtempo.design.curve import time_grid
from flowtempo.errors import UserError
from flowtempo.interpolants import STANDARD, Linear, VariancePreserving
from flowtempo.predictions import PREDICTIONS, error_factor
from flowtempo.variance import VarianceProfile

GRID = torch.linspace(-14, 14, 65, dtype=torch.float64)


def gaussian_profile(variance=1.0, grid=GRID, stderr=0.0):
    mean = variance / (1 + variance * grid.exp())
    return VarianceProfile(
        "posterior_variance", "closed form", "estimate", grid, mean, stderr * mean, 4, variance
    )


@pytest.mark.parametrize(("path", "prediction"), list(itertools.product(STANDARD, PREDICTIONS)))
@pytest.mark.parametrize("variance", [0.01, 1.0, 7.0])
def test_gaussian_closed_form(path, prediction, variance):
    t = torch.linspace(0.001, 0.999, 400, dtype=torch.float64)
    curve = variance_curve(gaussian_profile(variance), path, prediction, t)
    true = error_factor(prediction, path, t) * variance / (1 + variance * path.log_snr(t).exp())
    torch.testing.assert_close(curve.mean, true, rtol=1e-9, atol=0)


@pytest.mark.parametrize("variance", [0.25, 1.0, 4.0])
def test_values_of_the_linear_path(variance):
    """C1: the best loss for N(0, s^2) is s^2 / (t^2 s^2 + (1 - t)^2), the limits at both ends included."""
    t = torch.tensor([0.0, 0.2, 0.5, 0.8, 1.0], dtype=torch.float64)
    curve = variance_curve(gaussian_profile(variance), Linear(), "velocity", t)
    true = variance / (t**2 * variance + (1 - t) ** 2)
    torch.testing.assert_close(curve.mean, true, rtol=1e-5, atol=0)
    # C1 counts noise as tau = 1 - t: for s = 0.5 the values at tau = 0, .2, .5, 1.
    if variance == 0.25:
        torch.testing.assert_close(
            curve.mean[[4, 3, 2, 0]],
            torch.tensor([1, 1.25, 0.8, 0.25], dtype=torch.float64),
            rtol=1e-5,
            atol=0,
        )


def test_ends_are_limits_and_poles_are_infinite():
    ends = torch.tensor([0.0, 1.0], dtype=torch.float64)
    for prediction in ("velocity", "noise", "data", "v"):
        assert torch.isfinite(variance_curve(gaussian_profile(), Linear(), prediction, ends).mean).all()
    assert torch.isinf(variance_curve(gaussian_profile(), Linear(), "score", ends).mean).tolist() == [
        False,
        True,
    ]
    vp = variance_curve(gaussian_profile(), VariancePreserving(), "velocity", ends).mean
    assert torch.isinf(vp).tolist() == [False, True]


def test_beyond_the_profile_the_end_values_go_on():
    """Two scales: G falls like r^-2 with its own constant above, and levels off below."""
    grid = torch.linspace(-4, 6, 21, dtype=torch.float64)
    mean = 0.5 / (1 + 0.5 * grid.exp()) + 0.5 / (1 + 40 * grid.exp())
    profile = VarianceProfile("posterior_variance", "two scales", "estimate", grid, mean, 0 * mean, 2, 1.0)
    t = Linear().time(torch.tensor([-30.0, -4.0, 6.0, 20.0], dtype=torch.float64))
    curve = variance_curve(profile, Linear(), "data", t)
    assert mean[0] < curve.mean[0] < 1.0
    assert float(variance_curve(profile, Linear(), "data", torch.zeros(1)).mean) == pytest.approx(
        float(curve.mean[0]), rel=1e-9
    )
    assert curve.mean[1] == pytest.approx(float(mean[0]), rel=1e-9)
    assert curve.mean[2] == pytest.approx(float(mean[-1]), rel=1e-9)
    assert curve.mean[3] == pytest.approx(float(mean[-1]) * math.exp(6 - 20), rel=1e-2)


def test_standard_errors_follow_the_mean():
    curve = variance_curve(gaussian_profile(stderr=0.03), Linear())
    torch.testing.assert_close(curve.stderr, 0.03 * curve.mean)


def test_time_grid_resolves_both_ends():
    grid = time_grid()
    assert grid[0] == 0
    assert grid[-1] == 1
    assert (grid.diff() > 0).all()
    assert grid[1] < 1e-8
    assert grid[-2] > 1 - 1e-8
    inner = time_grid(0.1, 0.37)
    assert inner[0] == 0.1
    assert inner[-1] == 0.37


def test_measured_quantities_are_taken_as_they_are():
    """Linear in log-SNR between grid points, their end values beyond, no factor of the interpolant."""
    mean = torch.linspace(1, 5, 65, dtype=torch.float64)
    profile = VarianceProfile(
        "gradient_variance", "made up", "estimate", GRID, mean, 0.1 * mean, 4, 1.0, model={"run": "r"}
    )
    log_snr = torch.tensor([-math.inf, -7.0, 0.1, math.inf], dtype=torch.float64)
    for path in STANDARD:
        curve = curve_over_t(profile, path, "noise", path.time(log_snr).clamp(0, 1))
        at = path.log_snr(curve.t).clamp(-14, 14)
        torch.testing.assert_close(curve.mean, 3 + at / 7)
        torch.testing.assert_close(curve.stderr, 0.1 * curve.mean)
    with pytest.raises(UserError, match="not from a gradient_variance"):
        variance_curve(profile, Linear())
    posterior = curve_over_t(gaussian_profile(), Linear(), "noise")
    assert torch.equal(posterior.mean, variance_curve(gaussian_profile(), Linear(), "noise").mean)
