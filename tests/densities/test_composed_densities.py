import pytest
import scipy.stats
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flowtempo.densities import LogitNormal, Mixture, Tabulated, Truncated, Uniform
from flowtempo.errors import UserError


@settings(deadline=None, derandomize=True)
@given(mean=st.floats(-6, 6), std=st.floats(0.05, 4), floor=st.floats(1e-4, 0.999), u=st.floats(0, 1))
def test_any_mixture_inverts(mean, std, floor, u):
    density = Mixture(LogitNormal(mean, std), floor)
    value = torch.tensor([u], dtype=torch.float64)
    t = density.quantile(value)
    assert abs(density.cdf(t) - value) <= 1e-13 + 5e-16 * density.pdf(t)


def test_mixture_with_a_floor_bounds_the_weights():
    density = Mixture(LogitNormal(-3, 0.3), 0.05)
    t = torch.linspace(0, 1, 1001)
    assert (Uniform().pdf(t) / density.pdf(t)).max() <= 20


def test_truncated_normal_against_scipy():
    density = Truncated(LogitNormal(0.3, 1.2), 0.2, 0.9)
    low, high = torch.logit(torch.tensor([0.2, 0.9], dtype=torch.float64)).tolist()
    reference = scipy.stats.truncnorm((low - 0.3) / 1.2, (high - 0.3) / 1.2, loc=0.3, scale=1.2)
    u = torch.linspace(0, 1, 101, dtype=torch.float64)
    expected = torch.sigmoid(torch.as_tensor(reference.ppf(u)))
    torch.testing.assert_close(density.quantile(u), expected, rtol=1e-12, atol=0)


def test_truncation_of_a_table_keeps_its_gap():
    density = Truncated(Tabulated([0, 0.2, 0.3, 0.6, 1], [1, 0, 0, 1, 1]), 0.1, 0.5)
    gaps = density.gaps()
    assert gaps == [(0, 0.1), (0.2, 0.3), (0.5, 1)]


@pytest.mark.parametrize("floor", [0, 1, -0.1, float("nan")])
def test_mixture_checks_its_floor(floor):
    with pytest.raises(UserError, match="mixture: floor"):
        Mixture(Uniform(), floor)


@pytest.mark.parametrize("ends", [(0.5, 0.5), (0.6, 0.5), (-0.1, 0.5), (0.5, 1.1), (0.1, float("nan"))])
def test_truncated_checks_its_ends(ends):
    with pytest.raises(UserError, match="truncated: low"):
        Truncated(Uniform(), *ends)


def test_truncation_to_almost_nothing_raises():
    with pytest.raises(UserError, match=r"only 2\.48e-12 of logit_normal"):
        Truncated(LogitNormal(0, 1), 0.999, 1)
    with pytest.raises(UserError, match="only 0 of"):
        Truncated(Tabulated([0, 0.5, 0.7, 1], [1, 0, 0, 0]), 0.6, 0.9)
