import pytest
import torch


class GaussianField:
    """The exact prediction for data N(0, s^2) in every dimension, standing in for a perfect network."""

    num_classes = 0

    def __init__(self, interpolant, prediction="velocity", s=0.5):
        self.interpolant, self.prediction, self.s = interpolant, prediction, s
        self.calls = 0

    def variance(self, t):
        return (self.interpolant.alpha(t) * self.s) ** 2 + self.interpolant.sigma(t) ** 2

    def __call__(self, x, t, y=None):
        self.calls += 1
        # Posterior means, each without a pole at either end.
        alpha, sigma, variance = self.interpolant.alpha(t), self.interpolant.sigma(t), self.variance(t)
        data, noise = alpha * self.s**2 / variance, sigma / variance
        if self.prediction == "velocity":
            gain = self.interpolant.d_alpha(t) * data + self.interpolant.d_sigma(t) * noise
        elif self.prediction == "v":
            gain = alpha * noise - sigma * data
        else:
            gain = {"data": data, "noise": noise, "score": -1 / variance}[self.prediction]
        return gain.reshape(-1, *[1] * (x.ndim - 1)) * x

    def exact(self, x, start, end):
        """Where the flow takes x."""
        times = torch.tensor([start, end], dtype=torch.float64)
        low, high = self.variance(times)
        return x * float((high / low).sqrt())


@pytest.fixture
def gaussian_field():
    return GaussianField
