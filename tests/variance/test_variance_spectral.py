"""The cross-fitted linear bound against dense matrices, closed forms and the plug-in that it replaces."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flowtempo.errors import UserError
from flowtempo.variance import spectral
from flowtempo.variance.estimate import by_fold
from flowtempo.variance.linear import SHRINKAGES, _fit, spectral_errors
from flowtempo.variance.points import prepare

GRID = torch.tensor([-14.0, -6, -2, 0, 2, 6, 14], dtype=torch.float64)


def dense_error(fit, x, log_snr, share):
    """Error of x1 = mu + A (z - mu), A = r^2 C (1 + r^2 C)^-1: |(1 - A)(x - mu)|^2 + |A|_F^2 / r^2."""
    count, dim = fit.shape
    identity = torch.eye(dim, dtype=torch.float64)
    mean = fit.mean(0)
    y = fit - mean
    plain = y.T @ y / count
    level = plain.diagonal().mean() * identity
    # Ledoit & Wolf 2004, equations 9 to 14, with every outer product written out.
    outer = y[:, :, None] * y[:, None]
    b = (outer - plain).square().sum() / count**2
    shrinkage = share * min(1.0, float(b / (plain - level).square().sum()))
    covariance = (1 - shrinkage) * plain + shrinkage * level
    curve = []
    for square in log_snr.exp():
        a = square * covariance @ torch.linalg.inv(identity + square * covariance)
        miss = (x - mean) @ (identity - a).T
        curve.append((miss.square().sum(1) + a.square().sum() / square) / dim)
    return torch.stack(curve, 1)


@pytest.mark.parametrize(("count", "dim"), [(60, 5), (20, 30), (16, 1)])
def test_errors_are_those_of_the_dense_denoiser(count, dim):
    generator = torch.Generator().manual_seed(0)
    scales = torch.linspace(0.1, 2, dim, dtype=torch.float64)
    x = torch.randn(count, dim, generator=generator, dtype=torch.float64) * scales + 1
    points = prepare(x, seed=0)
    first, second = points.x[points.fold(0)], points.x[points.fold(1)]
    for estimate, share in zip(spectral_errors(points, GRID), SHRINKAGES, strict=True):
        expected = torch.cat(
            [dense_error(second, first, GRID, share), dense_error(first, second, GRID, share)]
        )
        torch.testing.assert_close(estimate.value, expected, rtol=1e-6, atol=1e-12)


def test_few_points_in_many_dimensions_bound_from_above():
    """N(0, I), d = 64, M = 100, r = 1: the MMSE is .5, the plug-in says .42, the bound a bit above .5."""
    generator = torch.Generator().manual_seed(0)
    grid = torch.zeros(1, dtype=torch.float64)
    bounds, plug_ins = [], []
    for _ in range(20):
        x = torch.randn(100, 64, generator=generator, dtype=torch.float64)
        bounds.append(spectral(x, grid).mean)
        values = torch.linalg.eigvalsh(torch.cov(x.T))
        plug_ins.append((values / (1 + values)).mean())
    assert float(torch.stack(plug_ins).mean()) == pytest.approx(0.42, abs=0.01)
    assert 0.5 < float(torch.stack(bounds).mean()) < 0.52


@pytest.mark.parametrize("copies", [1, 3])
def test_copies_do_not_cross_the_folds(copies):
    """Data repeated three times teaches no more: a copy in both folds would not be held out."""
    generator = torch.Generator().manual_seed(0)
    grid = torch.tensor([0.0, 4.0], dtype=torch.float64)
    true = 1 / (1 + grid.exp())
    bounds = []
    for seed in range(20):
        x = torch.randn(60, 64, generator=generator, dtype=torch.float64)
        bounds.append(spectral(x.repeat(copies, 1), grid, seed=seed).mean)
    assert ((torch.stack(bounds).mean(0) - true) / true > -0.002).all()


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 40), st.integers(8, 60), st.floats(0.0, 3.0), st.integers(0, 2**32))
def test_bound_stays_above_the_gaussian_truth(dim, count, decay, seed):
    spectrum = (1 + torch.arange(dim, dtype=torch.float64)) ** -decay
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, dim, generator=generator, dtype=torch.float64) * spectrum.sqrt()
    profile = spectral(x, None, seed=seed % 1000)
    true = (spectrum / (1 + profile.log_snr.exp()[:, None] * spectrum)).mean(1)
    # Few blocks know their own error badly; this is far out for 64 correlated numbers.
    assert float(((profile.mean - true) / profile.stderr).min()) > -8
    assert torch.isfinite(profile.stderr).all()


def test_least_shrinkage_is_chosen_where_it_serves():
    """Three strong directions of 32: whole shrinkage lifts the weak ones ten times too high."""
    generator = torch.Generator().manual_seed(0)
    spectrum = torch.full((32,), 1e-4, dtype=torch.float64)
    spectrum[:3] = 1
    x = torch.randn(400, 32, generator=generator, dtype=torch.float64) * spectrum.sqrt()
    grid = torch.tensor([6.0], dtype=torch.float64)
    points = prepare(x, seed=0)
    whole = by_fold(points, spectral_errors(points, grid)[0])[0].mean
    true = (spectrum / (1 + grid.exp() * spectrum)).mean()
    assert float(whole / true) > 1.5
    assert float(spectral(x, grid).mean / true) < 1.1


def test_the_rank_is_bounded(monkeypatch):
    """Large in both directions: a part of the fold gives the directions, and the bound still holds."""
    monkeypatch.setattr("flowtempo.variance.linear._LARGEST_RANK", 8)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(400, 20, generator=generator, dtype=torch.float64)
    profile = spectral(x, GRID)
    true = 1 / (1 + GRID.exp())
    points = prepare(x, seed=0)
    assert _fit(points, points.fold(0)).directions.shape == (20, 7)
    assert float(((profile.mean - true) / profile.stderr).min()) > -4
    assert float((profile.mean / true).max()) < 1.2


def test_bad_input_is_named():
    with pytest.raises(UserError, match="at least 8 points"):
        spectral(torch.randn(1, 5))
    with pytest.raises(UserError, match="does not vary"):
        spectral(torch.ones(20, 5))
    with pytest.raises(UserError, match="NaN"):
        spectral(torch.full((20, 5), torch.nan))
