import math

import numpy as np
import pytest
import torch
from torch import nn

from flowtempo.data import ArrayData
from flowtempo.interpolants import Linear
from flowtempo.objectives import Objective
from flowtempo.runtime import Runtime
from flowtempo.training.validate import BANDS, Reference

OBJECTIVE = Objective(Linear())


class Constant(nn.Module):
    def forward(self, x, t, y=None):
        return torch.full_like(x, 0.25)


class OptimalForUnitGaussian(nn.Module):
    def forward(self, x, t, y=None):
        return ((2 * t - 1) / (t**2 + (1 - t) ** 2))[:, None, None, None] * x


class Recorder(nn.Module):
    def __init__(self):
        super().__init__()
        self.images, self.times, self.labels, self.sizes = [], [], [], []

    def forward(self, x, t, y=None):
        self.images.append(x)
        self.times.append(t)
        self.labels.append(y)
        self.sizes.append(len(x))
        return torch.zeros_like(x)


def gaussian(count=512, labels=None):
    images = np.random.default_rng(0).standard_normal((count, 1, 8, 8), dtype=np.float32)
    return ArrayData(images, labels, 0 if labels is None else int(labels.max()) + 1)


def test_optimal_predictor_scores_the_closed_form_in_every_band():
    result = Reference(gaussian(), 512).loss(OptimalForUnitGaussian(), OBJECTIVE, Runtime())
    assert result.loss == pytest.approx(math.pi / 2, abs=0.01)
    edges = np.linspace(0, 1, BANDS + 1)
    exact = np.diff(np.arctan(2 * edges - 1)) * BANDS  # of 1 / (t^2 + (1 - t)^2)
    assert result.bands.tolist() == pytest.approx(exact.tolist(), abs=0.05)
    assert result.loss == pytest.approx(float(result.bands.mean()))
    assert (torch.from_numpy(exact) - result.bands).abs().max() < 4 * result.band_stderr.max()
    assert abs(result.loss - math.pi / 2) < 4 * result.stderr < 0.03


@pytest.mark.parametrize("chunk", [7, 100, 1000])
def test_same_bits_twice_and_for_any_number_at_a_time(chunk):
    model = Constant()
    first = Reference(gaussian(64), 64).loss(model, OBJECTIVE, Runtime())
    other = Reference(gaussian(64), 64).loss(model, OBJECTIVE, Runtime(), chunk=chunk)
    assert first.loss == other.loss
    assert torch.equal(first.bands, other.bands)


def test_each_image_is_used_once_per_band_with_stratified_times_and_its_label():
    labels = np.arange(30) % 4
    model = Recorder()
    Reference(gaussian(30, labels), 20).loss(model, OBJECTIVE, Runtime(), chunk=20)
    assert model.sizes == [20] * BANDS
    strata = torch.cat([t.sort().values for t in model.times]) * 20 * BANDS
    assert strata.long().tolist() == list(range(20 * BANDS))
    assert all(torch.equal(y, model.labels[0]) for y in model.labels)
    assert model.labels[0].max() < 4
    orders = [t.argsort().tolist() for t in model.times]
    assert orders[0] != sorted(orders[0])
    assert orders[0] != orders[1]


def test_model_gets_the_time_that_its_input_was_mixed_at():
    model = Recorder()
    Reference(ArrayData(np.zeros((40, 1, 16, 16), np.float32)), 40).loss(model, OBJECTIVE, Runtime())
    sigma = torch.cat(model.images).flatten(1).std(1)  # of (1 - t) noise
    torch.testing.assert_close(sigma, 1 - torch.cat(model.times), atol=0, rtol=0.25)


def test_count_is_bounded_by_the_data_and_training_mode_is_restored():
    reference = Reference(gaussian(5), 256)
    assert reference.count == 5
    model = Constant().train()
    record = reference.loss(model, OBJECTIVE, Runtime()).record(7, "ema")
    assert model.training
    assert (record["kind"], record["step"], record["track"]) == ("reference", 7, "ema")
    assert [(band["low"], band["high"]) for band in record["bands"]][::9] == [(0.0, 0.1), (0.9, 1.0)]


def test_one_image_has_no_standard_error_but_a_loss():
    result = Reference(gaussian(1), 1).loss(Constant(), OBJECTIVE, Runtime())
    assert result.stderr == 0
    assert math.isfinite(result.loss)
