"""Direct evaluations of the published formulas, with nothing shared, factorised or left out."""

import pytest
import torch


def _logits(x, noises, log_snr):
    """-r^2 |x_j - z_il|^2 / 2 for z_il = x_i + e_l / r, (M, K, M), from plain differences."""
    r = (log_snr / 2).exp()
    z = x[:, None] + noises / r
    return -(r**2) / 2 * (z[:, :, None] - x[None, None]).square().sum(-1)


def direct_in_sample(x, noises, log_snr, form):
    """E|x|^2/d - S with S = mean |D|^2/d ("quadratic") or mean <x_i, D>/d ("tower")."""
    power = x.square().sum(1).mean() / x.shape[1]
    curve = []
    for value in log_snr:
        mean = _logits(x, noises, value).softmax(-1) @ x
        inner = mean.square() if form == "quadratic" else x[:, None] * mean
        curve.append(power - inner.sum(-1).mean() / x.shape[1])
    return torch.stack(curve)


def direct_leave_one_out(x, noises, log_snr):
    """mean(|x_i|^2 - 2 <x_i, D_-i> + |D_-i|^2)/d."""
    own = torch.eye(len(x), dtype=torch.bool)[:, None]
    curve = []
    for value in log_snr:
        mean = _logits(x, noises, value).masked_fill(own, -torch.inf).softmax(-1) @ x
        terms = x.square().sum(-1)[:, None] - 2 * (x[:, None] * mean).sum(-1) + mean.square().sum(-1)
        curve.append(terms.mean() / x.shape[1])
    return torch.stack(curve)


@pytest.fixture
def formulas():
    """The two functions above."""

    class Formulas:
        in_sample = staticmethod(direct_in_sample)
        leave_one_out = staticmethod(direct_leave_one_out)

    return Formulas


@pytest.fixture
def rng():
    """A seeded generator."""
    return torch.Generator().manual_seed(0)
