import math

import pytest
import torch

from flowtempo.errors import UserError
from flowtempo.interpolants import Linear, Trigonometric, VariancePreserving, interpolant


def test_unknown_name_lists_the_known_ones():
    with pytest.raises(UserError, match=r"'gvp'.*linear, trigonometric, variance_preserving"):
        interpolant("gvp")


@pytest.mark.parametrize("bounds", [(0.0, 20.0), (-1.0, 20.0), (2.0, 1.0), (0.1, math.inf), (math.nan, 1.0)])
def test_variance_preserving_checks_its_bounds(bounds):
    with pytest.raises(UserError, match="beta_min"):
        VariancePreserving(*bounds)


def test_linear_log_snr_is_twice_the_logit():
    t = torch.tensor([0.1, 0.5, 0.9], dtype=torch.float64)
    torch.testing.assert_close(Linear().log_snr(t), 2 * torch.logit(t), rtol=1e-14, atol=1e-15)


def test_trigonometric_and_variance_preserving_keep_the_variance():
    t = torch.linspace(0, 1, 101, dtype=torch.float64)
    for path in (Trigonometric(), VariancePreserving()):
        torch.testing.assert_close(
            path.alpha(t) ** 2 + path.sigma(t) ** 2, torch.ones_like(t), rtol=1e-14, atol=0
        )


def test_variance_preserving_starts_at_its_lowest_log_snr():
    # 2 L(0) = -(20 - 0.1) / 2 - 0.1 = -10.05.
    lowest = VariancePreserving().log_snr(torch.zeros(1, dtype=torch.float64))
    assert float(lowest) == pytest.approx(-10.05 - math.log1p(-math.exp(-10.05)), abs=1e-12)
    assert VariancePreserving().time(lowest - 0.1) < 0


def test_data_and_noise_time_agree_under_the_flip():
    # tau = 1 - t: x_tau = (1 - tau) x1 + tau eps and velocity eps - x1 are the same point, the other sign.
    x1, eps = torch.randn(2, 4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    tau = torch.tensor([0.1, 0.3, 0.6, 0.9], dtype=torch.float64)
    x_tau = (1 - tau)[:, None] * x1 + tau[:, None] * eps
    torch.testing.assert_close(Linear().mix(x1, eps, 1 - tau), x_tau, rtol=0, atol=1e-15)
    assert torch.equal(Linear().velocity(x1, eps, 1 - tau), -(eps - x1))
