"""The stationary bound against dense matrices, known power spectra, and the noise itself."""

import math
import subprocess
import sys

import pytest
import torch

from flowtempo.variance import spectral
from flowtempo.variance.estimate import average, by_fold
from flowtempo.variance.linear import SHRINKAGES, spectral_errors
from flowtempo.variance.points import prepare
from flowtempo.variance.stationary import frequency_weight, stationary_fits

GRID = torch.tensor([-14.0, -6, -2, 0, 2, 6, 14], dtype=torch.float64)


def field(power, count, generator, channels=1):
    """Stationary Gaussian fields with a power for each frequency of the full spectrum, (n, C, *spatial)."""
    axes = tuple(range(2, power.ndim + 2))
    white = torch.randn(count, channels, *power.shape, generator=generator, dtype=torch.float64)
    return torch.fft.ifftn(torch.fft.fftn(white, dim=axes) * power.sqrt(), dim=axes).real


def natural(*size):
    """Power 1 / f^2 over the full spectrum, mean 1, like that of photographs."""
    axes = [torch.fft.fftfreq(n, 1 / n, dtype=torch.float64) for n in size]
    square = sum(f.square() for f in torch.meshgrid(*axes, indexing="ij"))
    power = 1 / (1 + square)
    return power / power.mean()


def gaussian(power, grid):
    """MMSE of a Gaussian with these variances, (L,)."""
    return (power.flatten() / (1 + grid.exp()[:, None] * power.flatten())).mean(1)


def candidates(x, grid, seed=0):
    """Profiles' means for each candidate."""
    points = prepare(x, seed=seed)
    curves = [average(points, by_fold(points, estimate)) for estimate in spectral_errors(points, grid)]
    return curves[: len(SHRINKAGES)], curves[len(SHRINKAGES) :]


def smoothed(diagonal, shape):
    """Geometric means over neighbouring frequencies, one axis after the other, (F, C)."""
    logs = diagonal.log().reshape(*shape[1:], -1)
    for axis in range(len(shape) - 1):
        logs = (logs.roll(1, axis) + 2 * logs + logs.roll(-1, axis)) / 4
    return logs.exp().reshape(diagonal.shape)


def dense_matrices(fit, shape, square):
    """The fold's mean and the denoisers' d x d matrices, from full transforms and matrix inverses."""
    channels, size = shape[0], math.prod(shape[1:])
    eye = torch.eye(size, dtype=torch.complex128).reshape(size, *shape[1:])
    axes = tuple(range(1, len(shape)))
    one = torch.fft.fftn(eye, dim=axes, norm="ortho").reshape(size, size).T  # frequency, position
    mean = fit.mean(0)
    transformed = (fit - mean).reshape(len(fit), channels, size).to(one.dtype) @ one.T
    spectra = torch.einsum("ncf,nef->fce", transformed, transformed.conj()) / len(fit)
    turn = torch.linalg.eigh(spectra.sum(0).real)[1].to(one.dtype)
    turned = turn.T @ spectra @ turn
    diagonal = turned.diagonal(dim1=1, dim2=2)
    plain, amount = torch.diag_embed(diagonal), channels / (len(fit) + channels)
    smooth = torch.diag_embed(smoothed(diagonal.real, shape)).to(one.dtype)
    kinds = [plain, smooth, (1 - amount) * turned + amount * plain]
    matrices = []
    for kind in kinds[: 2 if channels == 1 else 3]:
        covariance = turn @ kind @ turn.T
        a = square * covariance @ torch.linalg.inv(torch.eye(channels) + square * covariance)
        dense = torch.einsum("fp,fce,fq->cpeq", one.conj(), a, one)
        assert dense.imag.abs().max() < 1e-12
        matrices.append(dense.real.reshape(channels * size, -1))
    return mean, matrices


SHAPES = [(1, 1, 5), (1, 4, 6), (1, 5, 3), (2, 3, 4), (3, 5, 4), (2, 2, 3, 4), (3, 1, 1), (1, 3, 2, 5)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("count", [12, 40])
def test_errors_are_those_of_the_dense_denoiser(shape, count):
    generator = torch.Generator().manual_seed(0)
    dim = math.prod(shape)
    mix = torch.randn(dim, dim, generator=generator, dtype=torch.float64) / dim**0.5
    x = torch.randn(count, dim, generator=generator, dtype=torch.float64) @ mix + 1
    points = prepare(x.reshape(count, *shape), seed=0)
    stationary = spectral_errors(points, GRID)[len(SHRINKAGES) :]
    for half in (0, 1):
        fit, held_out = points.rows(points.fold(1 - half)), points.rows(points.fold(half))
        for index, square in enumerate(GRID.exp()):
            mean, matrices = dense_matrices(fit, shape, square)
            for estimate, a in zip(stationary, matrices, strict=True):
                miss = (held_out - mean) - (held_out - mean) @ a.T
                expected = (miss.square().sum(1).mean() + a.square().sum() / square) / dim
                found = by_fold(points, estimate)[half].mean[index]
                torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("shape", SHAPES)
def test_energies_add_up(shape):
    """Each component stands for its dimensions: energies of a point add up to its squared length."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(12, *shape, generator=generator, dtype=torch.float64)
    points = prepare(x, seed=0)
    y = points.rows(slice(0, 12))
    for fit in stationary_fits(points, points.fold(0)):
        torch.testing.assert_close(fit.energy(y).sum(1), y.square().sum(1))
        assert float(fit.weight.sum()) == points.dim
    assert float(frequency_weight(shape[1:]).sum()) == math.prod(shape[1:])


@pytest.mark.parametrize("shape", [(1, 6, 5), (3, 4, 4)])
def test_the_error_is_that_over_the_noise(shape):
    """Denoise 20,000 noised copies of one point: the mean squared error is the closed form's."""
    generator = torch.Generator().manual_seed(0)
    square, dim = 3.0, math.prod(shape)
    x = torch.randn(20, *shape, generator=generator, dtype=torch.float64).cumsum(-1)
    points = prepare(x, seed=0)
    point = points.rows(slice(0, 1))
    noise = torch.randn(20000, dim, generator=generator, dtype=torch.float64)
    axes = tuple(range(2, len(shape) + 1))
    for fit in stationary_fits(points, points.fold(1)):
        z = (point + noise / square**0.5 - fit.mean).reshape(-1, *shape)
        frequencies = torch.fft.rfftn(z, dim=axes)
        along = frequencies.reshape(len(z), shape[0], -1).permute(2, 0, 1)
        basis = torch.eye(shape[0]) if fit.basis is None else fit.basis
        basis = basis.to(along.dtype)
        values = fit.values[0].reshape(-1, shape[0])[:, None]
        along = (along @ basis.conj() * (square * values / (1 + square * values))) @ basis.mT
        denoised = torch.fft.irfftn(along.permute(1, 2, 0).reshape(frequencies.shape), shape[1:], dim=axes)
        miss = (denoised.reshape(len(z), -1) + fit.mean - point).square().sum(1)
        gain = 1 / (1 + square * fit.values[0]).square()
        closed = (
            fit.energy(point - fit.mean)[0] @ gain + square * (fit.weight * fit.values[0] ** 2 * gain).sum()
        )
        assert abs(float(miss.mean() - closed)) < 4 * float(miss.std()) / len(z) ** 0.5


@pytest.mark.parametrize("size", [(8, 8), (7, 9), (1, 16), (3, 4, 5)])
@pytest.mark.parametrize("spectrum", ["white", "natural"])
def test_bound_is_close_to_the_truth_of_stationary_fields(size, spectrum):
    power = natural(*size) if spectrum == "natural" else torch.ones(size, dtype=torch.float64)
    x = field(power, 2000, torch.Generator().manual_seed(0))
    curve = candidates(x, GRID)[1][0]
    true = gaussian(power, GRID)
    assert float(((curve.mean - true) / curve.stderr).min()) > -4
    assert float((curve.mean / true).max()) < 1.01 + 4 * float((curve.stderr / true).max())


@pytest.mark.parametrize("count", [12, 400])
def test_bound_holds_for_fields_that_are_not_stationary(count):
    """Variances from 0.01 to 9 over the picture: in expectation above the truth, at any number of points."""
    variance = torch.logspace(-2, 0.95, 36, dtype=torch.float64).reshape(1, 6, 6)
    generator = torch.Generator().manual_seed(0)
    curves = []
    for seed in range(20):
        x = torch.randn(count, 1, 6, 6, generator=generator, dtype=torch.float64) * variance.sqrt()
        curves.append(candidates(x, GRID, seed)[1][0].mean)
    stacked = torch.stack(curves)
    error = stacked.std(0) / len(stacked) ** 0.5
    assert float(((stacked.mean(0) - gaussian(variance, GRID)) / error).min()) > -4


def test_what_is_not_stationary_is_left_to_the_covariance():
    """Half of the picture is flat: the stationary denoiser is far off, and is not chosen."""
    variance = torch.full((1, 6, 6), 1e-4, dtype=torch.float64)
    variance[:, :3] = 1
    grid = torch.tensor([2.0, 6.0], dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1000, 1, 6, 6, generator=generator, dtype=torch.float64) * variance.sqrt()
    true = gaussian(variance, grid)
    assert float((candidates(x, grid)[1][0].mean / true).min()) > 1.5
    assert float((spectral(x, grid).mean / true).max()) < 1.1


def test_few_points_suffice():
    """100 points in 1,024 dimensions: within 3% of the truth, the covariance 18% to 42% off."""
    power = natural(32, 32)
    grid = torch.tensor([-2.0, 0, 2], dtype=torch.float64)
    x = field(power, 100, torch.Generator().manual_seed(0)).float()
    dense, stationary = candidates(x, grid)
    true = gaussian(power, grid)
    assert float((torch.stack([each.mean for each in dense]).amin(0) / true).min()) > 1.15
    assert float((torch.stack([each.mean for each in stationary]).amax(0) / true).max()) < 1.03
    assert float((spectral(x, grid).mean / true).max()) < 1.03


def test_smoothing_helps_fewer_still():
    """Eight points: each power rests on four numbers. Mean over 20 data sets, against the truth."""
    power, grid = natural(16, 16), torch.tensor([0.0, 2.0, 4.0], dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    curves = [candidates(field(power, 8, generator), grid, seed)[1] for seed in range(20)]
    plain, smooth = (torch.stack([each[k].mean for each in curves]).mean(0) for k in (0, 1))
    true = gaussian(power, grid)
    assert bool((smooth > true).all())
    assert bool((smooth - true < 0.9 * (plain - true)).all())


def test_the_mean_of_all_points_does_not_leak():
    """Points are stored less the mean of all: a fit that took that for its own would fall below the truth."""
    power, grid = natural(8, 8), torch.tensor([-2.0, 0.0, 2.0], dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    curves = [candidates(field(power, 16, generator), grid, seed)[1][1].mean for seed in range(40)]
    stacked = torch.stack(curves)
    error = stacked.std(0) / len(stacked) ** 0.5
    assert bool((stacked.mean(0) > gaussian(power, grid) + 2 * error).all())


@pytest.mark.parametrize("count", [8, 12, 2000])
def test_channels_that_go_together(count):
    """Four channels, mixed differently at each frequency: many points learn it, few do no harm."""
    generator = torch.Generator().manual_seed(0)
    size, channels = (6, 5), 4
    mix = torch.randn(channels, channels, generator=generator, dtype=torch.float64)
    shift = field(natural(*size), count, generator, channels)
    other = field(torch.ones(size, dtype=torch.float64), count, generator, channels)
    x = torch.einsum("ce,nehw->nchw", mix, shift) + 0.3 * other.roll(1, -1)
    covariance = natural(*size).flatten()[:, None, None] * (mix @ mix.T) + 0.09 * torch.eye(channels)
    true = gaussian(torch.linalg.eigvalsh(covariance), GRID)
    turned, smooth, crossed = candidates(x, GRID)[1]
    for curve in (turned, smooth, crossed):
        assert float(((curve.mean - true) / curve.stderr).min()) > -8
    if count == 2000:
        assert float((crossed.mean / true).max()) < 1.01 + 4 * float((crossed.stderr / true).max())
    else:
        assert float((crossed.mean / turned.mean).max()) < 1.15


def test_delays_between_channels_need_the_cross_spectra():
    """The second channel is the first, moved by one pixel: their covariance at one place is nothing."""
    generator = torch.Generator().manual_seed(0)
    first = field(torch.ones(8, 8, dtype=torch.float64), 1000, generator)
    x = torch.cat([first, first.roll(1, -1)], 1)
    grid = torch.tensor([0.0], dtype=torch.float64)
    turned, _, crossed = (curve.mean for curve in candidates(x, grid)[1])
    assert float(turned) > 0.4
    assert float(crossed) == pytest.approx(1 / 3, rel=0.02)  # two channels say it twice: 2/(1 + 2)/2


def test_only_pictures_have_positions():
    for shape in [(12,), (3, 4), (1, 2, 2, 3, 1)]:
        points = prepare(torch.randn(20, *shape, generator=torch.Generator().manual_seed(0)), seed=0)
        assert stationary_fits(points, points.fold(0)) == []
        assert len(spectral_errors(points, GRID)) == len(SHRINKAGES)


def test_too_many_channels_are_denoised_one_by_one(monkeypatch):
    generator = torch.Generator().manual_seed(0)
    x = field(natural(4, 4), 500, generator, channels=6)
    assert len(candidates(x, GRID)[1]) == 3
    monkeypatch.setattr("flowtempo.variance.stationary._LARGEST_CROSS", 6 * 96 - 1)
    curve, _ = candidates(x, GRID)[1]
    true = gaussian(natural(4, 4), GRID)
    assert float((curve.mean / true).max()) < 1.02 + 4 * float((curve.stderr / true).max())
    assert float(((curve.mean - true) / curve.stderr).min()) > -4


@pytest.mark.parametrize("log_snr", [0.0, 14.0, 30.0])
def test_single_precision_does_not_show(log_snr):
    """Condition number 1e8 and frequencies without power: the evaluation against float64, the fit given."""
    power = natural(16, 16) ** 3
    power = power / power.max() + 1e-8
    power[:, 8] = 0
    x = field(power, 100, torch.Generator().manual_seed(0)).float()
    points, square = prepare(x, seed=0), torch.tensor([log_snr], dtype=torch.float64).exp()
    estimates = spectral_errors(points, square.log())[len(SHRINKAGES) :]
    for half in (0, 1):
        (fit,) = stationary_fits(points, points.fold(1 - half))
        along = fit.energy(points.rows(points.fold(half)).double() - fit.mean.double())
        for estimate, values in zip(estimates, fit.values, strict=True):
            gain = 1 / (1 + square * values).square()
            exact = (along @ gain + square * (fit.weight * values.square() * gain).sum()).mean() / points.dim
            assert float(by_fold(points, estimate)[half].mean / exact) == pytest.approx(1, abs=2e-6)


PEAK = """
import resource, sys, torch
from flowtempo.variance.linear import spectral_errors
from flowtempo.variance.points import prepare
shape = tuple(int(n) for n in sys.argv[2:])
x = torch.randn(int(sys.argv[1]), *shape, generator=torch.Generator().manual_seed(0))
points = prepare(x, seed=0)
del x
before = int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize() // 1024
spectral_errors(points, torch.linspace(-14, 14, 65, dtype=torch.float64))
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(1, 64, 64, 64), (4, 256, 256), (32, 64, 64)])
def test_video_latents_stay_in_bounded_memory(shape):
    command = [sys.executable, "-c", PEAK, "64", *map(str, shape)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert int(done.stdout) < 1024  # MiB
