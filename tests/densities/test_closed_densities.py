import math

import pytest
import scipy.stats
import torch

from flowtempo.densities import LogitNormal, Mixture, Uniform
from flowtempo.errors import UserError


def test_logit_normal_masses_at_the_ends():
    density = LogitNormal(0, 1)
    assert density.mass(0.9, 1) == pytest.approx(0.0140022, abs=5e-8)
    assert density.mass(0.3, 0.7) == pytest.approx(0.603171, abs=5e-7)
    assert density.mass(0.99, 1) == pytest.approx(2.16e-6, abs=5e-9)
    assert Mixture(density, 0.1).mass(0.99, 1) == pytest.approx(0.0010019, abs=5e-8)


def test_logit_normal_mass_in_the_high_noise_band_with_and_without_shift():
    # A shift by s adds log s to the logit.
    assert LogitNormal(0, 1).mass(0.875, 1) == pytest.approx(0.0258328, abs=5e-8)
    assert LogitNormal(math.log(5), 1).mass(0.875, 1) == pytest.approx(0.368257, abs=5e-7)
    assert LogitNormal(math.log(3), 1).mass(0.9, 1) == pytest.approx(0.135969, abs=5e-7)


@pytest.mark.parametrize(("mean", "std"), [(0, 1), (-0.75, 1), (3, 0.5)])
def test_logit_normal_mass_keeps_its_digits_in_both_tails(mean, std):
    density = LogitNormal(mean, std)
    for end in (2.0**-17, 2.0**-30):
        low, high = 0.0, end
        expected = scipy.stats.norm.cdf((math.log(end) - math.log1p(-end) - mean) / std)
        assert density.mass(low, high) == pytest.approx(expected, rel=1e-11, abs=0)
        expected = scipy.stats.norm.sf((math.log1p(-end) - math.log(end) - mean) / std)
        assert density.mass(1 - end, 1.0) == pytest.approx(expected, rel=1e-11, abs=0)


def test_logit_normal_pdf_against_its_formula():
    t = torch.tensor([1e-6, 0.1, 0.5, 0.99], dtype=torch.float64)
    logit = torch.logit(t)
    expected = torch.as_tensor(scipy.stats.norm.pdf(logit, -0.75, 1.3)) / (t * (1 - t))
    torch.testing.assert_close(LogitNormal(-0.75, 1.3).pdf(t), expected, rtol=1e-13, atol=0)
    assert LogitNormal(0, 1).pdf(torch.tensor([0.0, 1.0])).tolist() == [0, 0]


def test_a_wide_logit_normal_never_draws_zero_or_one():
    # sigmoid is 1 in float32 from 17 on, and z reaches 8 x std here.
    u = torch.tensor([2.0**-53, 1 - 2.0**-53, 0.03, 0.97], dtype=torch.float64)
    for std in (10, 100):
        density = LogitNormal(0, std)
        for dtype in (torch.float32, torch.float64):
            t = density.draw(u, dtype)
            assert ((t > 0) & (t < 1)).all()
        drawn = density.draw(u, torch.float64)
        weight = Uniform().pdf(drawn) / density.pdf(drawn)
        assert weight.isfinite().all()


@pytest.mark.parametrize("parameters", [(0, 0), (0, -1), (0, math.inf), (0, math.nan), (math.inf, 1)])
def test_logit_normal_checks_its_parameters(parameters):
    with pytest.raises(UserError, match=r"logit_normal: (mean|std) = "):
        LogitNormal(*parameters)
