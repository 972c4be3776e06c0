"""The cross-fitted linear bound against dense matrices, closed forms and the plug-in that it replaces."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flowtempo.errors import UserError
from flowtempo.variance import spectral
from flowtempo.variance.estimate import by_fold
from flowtempo.variance.linear import SHRINKAGES, _fit, spectral_errors
from flowtempo.variance.points import Stream, prepare

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
    estimates = spectral_errors(points, GRID)
    for estimate, share in zip(estimates, SHRINKAGES, strict=True):
        expected = torch.cat(
            [dense_error(second, first, GRID, share), dense_error(first, second, GRID, share)]
        )
        sums = torch.zeros(points.blocks, len(GRID), dtype=torch.float64)
        sums.index_add_(0, points.block_of, expected)
        torch.testing.assert_close(estimate.deleted[:, 0], sums, rtol=1e-6, atol=1e-12)
        if share == 1:  # a control variate needs a value at each point
            torch.testing.assert_close(estimate.value, expected, rtol=1e-6, atol=1e-12)
            assert torch.equal(estimate.query, torch.arange(count))


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
    monkeypatch.setattr("flowtempo.variance.linear._LARGEST_DIM", 19)
    monkeypatch.setattr("flowtempo.variance.linear._LARGEST_RANK", 8)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(400, 20, generator=generator, dtype=torch.float64)
    profile = spectral(x, GRID)
    true = 1 / (1 + GRID.exp())
    points = prepare(x, seed=0)
    assert _fit(points, points.fold(0)).directions.shape == (20, 8)
    assert float(((profile.mean - true) / profile.stderr).min()) > -4
    assert float((profile.mean / true).max()) < 1.2


@pytest.mark.parametrize("count", [300, 60])
@pytest.mark.parametrize("log_snr", [0.0, 14.0, 30.0])
def test_single_precision_does_not_show(count, log_snr):
    """Condition number 1e8, and a quarter of the coordinates constant: the evaluation against float64.

    The fit may be anything, so it is that of the float32 points; its directions are made orthonormal and
    multiplied in float64, where the closed form is exact.
    """
    dim, live = 96, 72
    generator = torch.Generator().manual_seed(0)
    turn = torch.linalg.qr(torch.randn(live, live, generator=generator, dtype=torch.float64))[0]
    scales = torch.logspace(1, -3, live, dtype=torch.float64)
    x = torch.zeros(count, dim)
    x[:, :live] = (
        (torch.randn(count, live, generator=generator, dtype=torch.float64) * scales) @ turn
    ).float()
    points = prepare(x, seed=0)
    grid = torch.tensor([log_snr], dtype=torch.float64)
    estimates = spectral_errors(points, grid)
    for half in (0, 1):
        fit = _fit(points, points.fold(1 - half))
        left, _, right = torch.linalg.svd(fit.directions.double(), full_matrices=False)
        rank = fit.directions.shape[1]
        y = points.rows(points.fold(half)).double() - fit.mean.double()
        along = (y @ (left @ right)).square()
        if rank < dim:
            beside = y.square().sum(1) - along.sum(1)
            along = torch.cat([along, beside[:, None]], 1)
        for estimate, values in zip(estimates, fit.values, strict=True):
            factor = 1 / (1 + grid.exp() * values).square()
            exact = (along @ factor + grid.exp() * (fit.weight * values.square() * factor).sum()).mean() / dim
            found = by_fold(points, estimate)[half].mean
            assert float(found / exact) == pytest.approx(1, abs=2e-6)


def test_few_variances_do_not_lose_to_single_precision():
    """The bound from float32 points is that from float64 points of the same values, to 1 in 1,000."""
    generator = torch.Generator().manual_seed(0)
    turn = torch.linalg.qr(torch.randn(64, 64, generator=generator, dtype=torch.float64))[0]
    scales = torch.logspace(0, -3, 64, dtype=torch.float64)
    x = ((torch.randn(3000, 64, generator=generator, dtype=torch.float64) * scales) @ turn).float()
    single, double = spectral(x), spectral(x.double())
    torch.testing.assert_close(single.mean, double.mean, rtol=1e-3, atol=0)


@pytest.mark.parametrize("scale", [1e-25, 1e-12, 1e12])
def test_scale_is_free(scale):
    """Squares of such float32 numbers are not all float32 numbers; the unit of the data changes nothing."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(40, 2, 3, 4, generator=generator).cumsum(-1)
    grid = torch.tensor([-2.0, 0, 3], dtype=torch.float64)
    plain = prepare(x, seed=0)
    points = replace(plain, x=(plain.rows(slice(0, 40)).double() * scale).float(), norm=plain.norm * scale**2)
    shifted = spectral_errors(points, grid - 2 * torch.tensor(scale, dtype=torch.float64).log())
    for estimate, reference in zip(shifted, spectral_errors(plain, grid), strict=True):
        torch.testing.assert_close(estimate.deleted / scale**2, reference.deleted, rtol=1e-5, atol=0)


def test_points_may_be_read_from_a_source():
    class Source:
        shape = (2, 4, 5)

        def __init__(self, x):
            self.x = x

        def __len__(self):
            return len(self.x)

        def batch(self, indices):
            return self.x[indices], None

    generator = torch.Generator().manual_seed(0)
    x = torch.randn(100, 2, 4, 5, generator=generator)
    kept = prepare(x, seed=0)
    order = kept.copy_of  # distinct points in a random order
    read = replace(kept, x=Stream(Source(x), order, x.reshape(100, -1).double().mean(0), torch.float32))
    for first, second in zip(spectral_errors(kept, GRID), spectral_errors(read, GRID), strict=True):
        torch.testing.assert_close(first.deleted, second.deleted, rtol=1e-5, atol=0)


@pytest.mark.parametrize("count", [24, 400])
def test_chunks_change_nothing(monkeypatch, count):
    """Points, directions and columns a few at a time: the same numbers."""
    generator = torch.Generator().manual_seed(0)
    points = prepare(torch.randn(count, 2, 5, 6, generator=generator, dtype=torch.float64).cumsum(-1), seed=0)
    whole = spectral_errors(points, GRID)
    monkeypatch.setattr("flowtempo.variance.linear._CHUNK_NUMBERS", 700)
    monkeypatch.setattr("flowtempo.variance.linear._SCATTER_BLOCK", 7)
    monkeypatch.setattr("flowtempo.variance.stationary._CHUNK_NUMBERS", 700)
    for first, second in zip(whole, spectral_errors(points, GRID), strict=True):
        torch.testing.assert_close(first.deleted, second.deleted, rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(first.value, second.value, rtol=1e-9, atol=1e-12)


def test_variances_from_a_part_of_the_points(monkeypatch):
    """Variances along 10 directions from 100 points instead of 1,000: 14% off each, the bound 1%."""
    scales = torch.logspace(0, -2, 10, dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2000, 10, generator=generator, dtype=torch.float64) * scales
    whole = spectral(x, GRID).mean
    monkeypatch.setattr("flowtempo.variance.linear._VARIANCE_POINTS", 100)
    torch.testing.assert_close(spectral(x, GRID).mean, whole, rtol=0.02, atol=0)


def test_bad_input_is_named():
    with pytest.raises(UserError, match="at least 8 points"):
        spectral(torch.randn(1, 5))
    with pytest.raises(UserError, match="does not vary"):
        spectral(torch.ones(20, 5))
    with pytest.raises(UserError, match="NaN"):
        spectral(torch.full((20, 5), torch.nan))
