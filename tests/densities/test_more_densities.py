import math

import numpy as np
import pytest
import scipy.stats
import torch

from flowtempo.densities import (
    EDM,
    Beta,
    Blend,
    CosMap,
    LogitNormal,
    Mode,
    Piecewise,
    Power,
    Shifted,
    Speed,
    Truncated,
    Uniform,
    parse,
)
from flowtempo.densities.steps import flat_from
from flowtempo.errors import UserError
from flowtempo.interpolants import DdpmCosine, DdpmLinear, Linear, VariancePreserving
from flowtempo.interpolants.shifts import shift


def grid(count: int = 101) -> torch.Tensor:
    return torch.linspace(0, 1, count, dtype=torch.float64)[1:-1]


@pytest.mark.parametrize("scale", [-1.0, 0.81, 1.29, 1.75])
def test_mode_is_sd3s_map_in_the_noise_level(scale):
    u = torch.linspace(0, 1, 1001, dtype=torch.float64)
    sd3 = 1 - u - scale * (torch.cos(math.pi * u / 2) ** 2 - 1 + u)
    torch.testing.assert_close(1 - Mode(scale).quantile(u), sd3, rtol=0, atol=1e-15)
    assert (Mode(scale).quantile(u).diff() >= 0).all()
    assert Mode(scale).quantile(torch.tensor([0, 0.5, 1])).tolist() == pytest.approx([0, 0.5, 1])


@pytest.mark.parametrize("scale", [2, 2.5, 1.752, -1.01, math.nan])
def test_mode_rejects_scales_that_are_not_monotone(scale):
    with pytest.raises(UserError, match="mode: scale"):
        Mode(scale)


def test_draws_of_diffusers():
    training_utils = pytest.importorskip("diffusers.training_utils")
    for scheme, density in [("mode", Mode(1.29)), ("logit_normal", LogitNormal(0.5, 1.2))]:
        drawn = training_utils.compute_density_for_timestep_sampling(
            scheme,
            20_000,
            logit_mean=-0.5,
            logit_std=1.2,
            mode_scale=1.29,
            generator=torch.Generator().manual_seed(0),
        )
        t = 1 - drawn.double()
        assert scipy.stats.kstest(t, lambda x, d=density: d.cdf(torch.as_tensor(x)).numpy()).pvalue > 1e-3
    # There CosMap is a weight at uniform noise levels, with this density's value.
    sigma = grid().float()
    weight = training_utils.compute_loss_weighting_for_sd3("cosmap", sigma)
    torch.testing.assert_close(CosMap().pdf(1 - sigma).float(), weight)


@pytest.mark.parametrize("parameters", [(2, 3), (0.5, 0.5), (1, 4), (100, 0.5), (500, 500), (0.3, 20)])
def test_beta_against_scipy(parameters):
    reference, density = scipy.stats.beta(*parameters), Beta(*parameters)
    t = grid()
    np.testing.assert_allclose(density.cdf(t), reference.cdf(t), rtol=0, atol=1e-12)
    np.testing.assert_allclose(reference.cdf(density.quantile(t)), t, rtol=0, atol=1e-12)
    # scipy's pdf is 0 / 0 where it underflows.
    expected = np.exp(reference.logpdf(t))
    np.testing.assert_allclose(density.pdf(t), expected, rtol=1e-11, atol=1e-250)


def test_edm_on_the_linear_path_is_a_logit_normal():
    t = grid()
    for function in ("pdf", "cdf", "quantile"):
        torch.testing.assert_close(
            getattr(EDM(-1.2, 1.2), function)(t),
            getattr(LogitNormal(1.2, 1.2), function)(t),
            rtol=1e-12,
            atol=1e-15,
        )


@pytest.mark.parametrize("path", [VariancePreserving(), DdpmLinear()], ids=str)
def test_edm_on_another_path_draws_the_same_noise_levels(path):
    t = EDM(-1.2, 1.2, path).quantile(grid())
    log_sigma = -path.log_snr(t) / 2
    low = float(-path.log_snr(torch.zeros(1, dtype=torch.float64)) / 2)
    reference = scipy.stats.truncnorm(-np.inf, (low + 1.2) / 1.2, loc=-1.2, scale=1.2)
    np.testing.assert_allclose(1 - reference.cdf(log_sigma), grid(), rtol=0, atol=1e-10)


def test_the_boundary_of_speed():
    assert flat_from(DdpmLinear()) == 0.642
    assert flat_from(DdpmCosine()) == 0.959
    with pytest.raises(UserError, match=r"no boundary .*tau=0\.7"):
        Speed(5, Linear())


def test_the_masses_of_speed():
    assert Speed(5, tau=0.7).mass(0.3, 1) == pytest.approx(3500 / 3800)
    assert Speed(5, DdpmLinear()).mass(1 - 0.642, 1) == pytest.approx(5 * 642 / (1000 + 4 * 642))
    for wrong in ({}, {"tau": 0.7, "interpolant": Linear()}, {"tau": 700}):
        with pytest.raises(UserError, match="speed: "):
            Speed(5, **wrong)
    with pytest.raises(UserError, match="ratio"):
        Speed(1, tau=0.5)


def test_masses_in_noisy_bands_with_shift():
    assert LogitNormal(0, 1).mass(0, 0.125) == pytest.approx(0.0258328, abs=5e-8)
    assert Shifted(LogitNormal(0, 1), 5).mass(0, 0.125) == pytest.approx(0.368257, abs=5e-7)
    assert Shifted(LogitNormal(0, 1), 3).mass(0, 0.1) == pytest.approx(0.135969, abs=5e-7)


def test_a_shift_moves_the_quantiles():
    u = grid()
    moved = Shifted(Beta(2, 3), 3).quantile(u)
    torch.testing.assert_close(moved, shift(Beta(2, 3).quantile(u), 3.0))
    torch.testing.assert_close(
        Shifted(LogitNormal(0.2, 0.7), 3).pdf(u),
        LogitNormal(0.2 - math.log(3), 0.7).pdf(u),
        rtol=1e-12,
        atol=0,
    )


def test_shifts_that_are_mistakes():
    with pytest.raises(UserError, match=r"shifted\(uniform, 6\), the product"):
        parse("shifted(shifted(uniform, 2), 3)")
    with pytest.raises(UserError, match="no effect"):
        parse("shifted(uniform, 1)")
    with pytest.raises(UserError, match="above 0"):
        parse("shifted(uniform, -1)")


def test_truncation_is_in_final_time():
    density = Truncated(Shifted(Uniform(), 3), 0.2, 0.4)
    assert density.mass(0.2, 0.4) == 1
    assert (density.low, density.high) == (0.2, 0.4)


def test_power_of_a_beta_is_a_beta():
    t = grid()
    torch.testing.assert_close(Power(Beta(2, 3), 0.5).cdf(t), Beta(1.5, 2).cdf(t), rtol=0, atol=1e-11)
    torch.testing.assert_close(Power(Beta(2, 3), 3).pdf(t), Beta(4, 7).pdf(t), rtol=1e-11, atol=0)


@pytest.mark.parametrize(
    "text",
    [
        "power(beta(0.5, 0.5), 2)",
        "power(logit_normal(0, 1), -1)",
        "power(piecewise([0, 0.5], [1]), -1)",
        "power(cosmap, 1)",
        "power(uniform, 2)",
    ],
)
def test_powers_without_an_integral_or_an_effect_raise(text):
    with pytest.raises(UserError, match="power"):
        parse(text)


def test_blend_is_the_weighted_sum():
    density = Blend(LogitNormal(-1, 0.5), Beta(5, 2), 0.25)
    assert density.mass(0.1, 0.4) == pytest.approx(
        0.75 * LogitNormal(-1, 0.5).mass(0.1, 0.4) + 0.25 * Beta(5, 2).mass(0.1, 0.4)
    )
    with pytest.raises(UserError, match="no effect"):
        Blend(Uniform(), Uniform(), 0.5)


@pytest.mark.parametrize(
    ("bounds", "masses"),
    [([0, 1], [1, 1]), ([0, 0.5, 0.5, 1], [1, 1, 1]), ([0, 2], [1]), ([0, 1], [0]), ([0, 0.5, 1], [1, -1])],
)
def test_piecewise_checks_its_bands(bounds, masses):
    with pytest.raises(UserError, match="piecewise: "):
        Piecewise(bounds, masses)
