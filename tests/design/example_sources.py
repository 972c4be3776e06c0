"""Profiles and probes with known curves, for the tests of designs."""

import torch

from flowtempo.interpolants import Linear
from flowtempo.variance import VarianceProfile
from flowtempo.variance.probe import GRADIENTS, LOSSES, Probe

GRID = torch.linspace(-14, 14, 65, dtype=torch.float64)
LINEAR = {"interpolant": "linear", "prediction": "velocity", "group": "all"}


def posterior(mean=None, quantity="posterior_variance", **more):
    """N(0, I) by default."""
    mean = 1 / (1 + GRID.exp()) if mean is None else mean
    more = {"stderr": 0 * mean, **more}
    return VarianceProfile(
        quantity, "closed form", "estimate", log_snr=GRID, mean=mean, dim=4, second_moment=1.0, **more
    )


def measured(quantity, mean, model=LINEAR, stderr=None, **more):
    stderr = 0 * mean if stderr is None else stderr
    return VarianceProfile(
        quantity, "made up", "estimate", GRID, mean, stderr, 4, 1.0, model=dict(model), **more
    )


def probe(curves, groups=None, model=LINEAR):
    """A probe whose curve of each named quantity is given; the others are 1."""

    def all_of(wanted, given):
        return {name: measured(name, given.get(name, torch.ones_like(GRID)), model) for name in wanted}

    return Probe(
        all_of(GRADIENTS + LOSSES, curves),
        {name: all_of(GRADIENTS, given) for name, given in (groups or {}).items()},
    )


def from_blocks(curves, make=posterior):
    """The profile of independent measurements, one on each block: (B, L)."""
    blocks, mean = len(curves), curves.mean(0)
    without = (blocks * mean - curves) / (blocks - 1)
    stderr = ((blocks - 1) / blocks * (without - without.mean(0)).square().sum(0)).sqrt()
    return make(mean, stderr=stderr, without=without)


def noisy_blocks(truth, generator, blocks=16, noise=0.2, reach=4.0, roughness=0.0):
    """Curves around a truth with relative noise whose correlation falls by 1/e over `reach` in log-SNR."""
    shape = (-(GRID[:, None] - GRID[None]).abs() / reach).exp() + roughness * torch.eye(len(GRID))
    root = torch.linalg.cholesky(shape / (1 + roughness))
    normal = torch.randn(blocks, len(GRID), generator=generator, dtype=torch.float64)
    return truth * (1 + noise * normal @ root.T)


def slope(rate):
    """exp(rate t) on the linear path."""
    return (rate * Linear().time(GRID)).exp()
