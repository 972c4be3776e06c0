"""The multi-sample target of every prediction under every interpolant."""

import pytest
import torch
from interpolant_examples import PATHS

from flowtempo.interpolants import per_sample
from flowtempo.objectives.targets import posterior_means
from flowtempo.predictions import PREDICTIONS, target


def expected_target(images, x_t, t, path, prediction):
    """The target's mean over `images` given x_t, from all pairs of noisy images and images."""
    shape = (len(x_t), *images.shape)
    data, times = images.expand(shape).flatten(0, 1), t.repeat_interleave(len(images))
    alpha, sigma = per_sample(path.alpha(times), data), per_sample(path.sigma(times), data)
    noise = (x_t.repeat_interleave(len(images), 0) - alpha * data) / sigma
    weight = torch.softmax(-noise.flatten(1).square().sum(1).reshape(shape[:2]) / 2, 1)
    targets = target(prediction, data, noise, times, path).reshape(shape)
    return torch.einsum("bn,bn...->b...", weight, targets)


@pytest.mark.parametrize("path", PATHS, ids=str)
@pytest.mark.parametrize("prediction", PREDICTIONS)
def test_expected_data_and_noise_give_the_expected_target(path, prediction):
    images, x0 = torch.randn(2, 8, 3, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    t = torch.linspace(0.02, 0.9, 8, dtype=torch.float64)
    x_t = path.mix(images, x0, t)
    mean, noise = posterior_means(images, x0, t, images, path, own=torch.eye(8, dtype=torch.bool))
    torch.testing.assert_close(path.mix(mean, noise, t), x_t, rtol=1e-11, atol=1e-11)
    wanted = expected_target(images, x_t, t, path, prediction)
    scale = max(1.0, float(wanted.abs().max()))
    torch.testing.assert_close(target(prediction, mean, noise, t, path), wanted, rtol=1e-8, atol=1e-9 * scale)
