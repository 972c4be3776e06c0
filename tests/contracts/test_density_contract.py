"""What every density must keep; a new one must add an example here (`test_every_density_has_an_example`)."""

import itertools
import math
import pickle

import pytest
import scipy.integrate
import scipy.stats
import torch

from flowtempo.densities import (
    DENSITIES,
    EDM,
    Beta,
    Blend,
    CosMap,
    LogitNormal,
    Mixture,
    Mode,
    Normal,
    Piecewise,
    Power,
    Shifted,
    Speed,
    Tabulated,
    Truncated,
    Uniform,
    parse,
)
from flowtempo.errors import UserError
from flowtempo.interpolants import DdpmCosine, DdpmLinear, Trigonometric, VariancePreserving
from flowtempo.randomness import uniform
from flowtempo.timesteps import Proposal

CURVE = [4.0, 2.0, 0.0, 0.0, 1.0, 3.0, 0.0]
GRID = [0.0, 0.1, 0.3, 0.5, 0.55, 0.9, 1.0]

# By the name in `DENSITIES`.
EXAMPLES = {
    "uniform": [Uniform()],
    "logit_normal": [LogitNormal(0, 1), LogitNormal(-0.75, 1), LogitNormal(2.0, 0.3), LogitNormal(0.5, 3.0)],
    "mode": [Mode(1.29), Mode(0.81), Mode(-0.5), Mode(-1), Mode(1.7)],
    "cosmap": [CosMap()],
    "edm": [
        EDM(-1.2, 1.2),
        EDM(-0.4, 1, VariancePreserving()),
        EDM(0.5, 0.7, Trigonometric()),
    ],
    "beta": [Beta(2, 5), Beta(1, 1), Beta(0.5, 0.5), Beta(1, 3.5), Beta(12, 8)],
    "normal": [Normal(0.7, 0.2), Normal(-0.5, 0.3), Normal(1.5, 0.2)],
    "piecewise": [
        Piecewise([0, 0.2, 0.4, 1], [1, 0, 2]),
        Piecewise([0.1, 0.3, 0.9], [0.25, 0.75]),
    ],
    "speed": [Speed(5, tau=0.7), Speed(0.5, tau=0.1), Speed(5, DdpmLinear()), Speed(5, DdpmCosine())],
    "blend": [
        Blend(LogitNormal(-1, 0.5), LogitNormal(1, 0.5), 0.3),
        Blend(Beta(2, 5), Piecewise([0.2, 0.9], [1]), 0.5),
    ],
    "shifted": [
        Shifted(LogitNormal(0, 1), 3),
        Shifted(Uniform(), 5),
        Shifted(Tabulated(GRID, CURVE), 0.3),
        Shifted(Truncated(Mode(1.29), 0.3, 0.9), 2),
    ],
    "power": [
        Power(LogitNormal(0, 1), 2),
        Power(Mixture(LogitNormal(0, 1), 0.1), -1),
        Power(Beta(2, 3), 0.5),
        Power(Piecewise([0, 0.2, 0.4, 1], [1, 0, 2]), 2),
    ],
    "table": [
        Tabulated(GRID, CURVE),
        Tabulated([0.1, 0.2, 0.8], [0.0, 5.0, 0.0]),
        Tabulated([0.0, 1.0], [1.0, 1.0]),
        Tabulated([0.0, 0.2, 0.4, 1.0], [0.0, 0.0, 1.0, 1e-9]),
        Tabulated(torch.linspace(0, 1, 65), 1 / (torch.linspace(0, 1, 65) ** 2 + 0.01)),
    ],
    "mixture": [
        Mixture(LogitNormal(0, 1), 0.1),
        Mixture(LogitNormal(-2.0, 0.2), 0.01),
        Mixture(Tabulated(GRID, CURVE), 0.05),
        Mixture(Truncated(Uniform(), 0.2, 0.3), 0.5),
    ],
    "truncated": [
        Truncated(Uniform(), 0.01, 0.99),
        Truncated(LogitNormal(0, 1), 0.3, 0.8),
        Truncated(LogitNormal(0, 1), low=0.98),
        Truncated(Mixture(LogitNormal(0, 1), 0.1), 0.0, 0.97),
        Truncated(Tabulated(GRID, CURVE), 0.2, 0.7),
    ],
}
each_density = pytest.mark.parametrize(
    "density", [density for examples in EXAMPLES.values() for density in examples], ids=repr
)


def tensor(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def levels() -> torch.Tensor:
    tails = torch.logspace(-12, -2, 41, dtype=torch.float64)
    return torch.cat([tails, torch.linspace(0.011, 0.989, 500, dtype=torch.float64), 1 - tails.flip(0)])


def resolution(density) -> float:
    """Rounding of the CDF; a truncation's is its base's, over the mass that is left."""
    return 1e-13 + (
        4e-16 / density.base.mass(density.low, density.high) if isinstance(density, Truncated) else 0
    )


def integral(density, lo: float, hi: float) -> float:
    edges = sorted({lo, hi, *[k for k in density.edges() if lo < k < hi]})
    return math.fsum(
        scipy.integrate.quad(
            lambda t: float(density.pdf(tensor(t))), a, b, epsabs=1e-12, epsrel=1e-10, limit=200
        )[0]
        for a, b in itertools.pairwise(edges)
    )


def test_every_density_has_an_example():
    assert set(EXAMPLES) == set(DENSITIES)


@each_density
def test_pdf_integrates_to_one_and_to_the_mass(density):
    parts = [(0.0, 0.13), (0.13, 0.52), (0.52, 0.9), (0.9, 1.0)]
    integrals = [integral(density, *part) for part in parts]
    for part, value in zip(parts, integrals, strict=True):
        assert density.mass(*part) == pytest.approx(value, rel=1e-8, abs=1e-11)
    assert sum(integrals) == pytest.approx(1, abs=1e-10)
    assert density.mass(0, 1) == pytest.approx(1, abs=1e-15)


@each_density
def test_pdf_is_the_derivative_of_the_cdf(density):
    t = torch.linspace(0, 1, 1733, dtype=torch.float64)[1:-1].requires_grad_()
    derivative = torch.autograd.grad(density.cdf(t).sum(), t)[0]
    torch.testing.assert_close(density.pdf(t.detach()), derivative, rtol=1e-9, atol=1e-12)


@each_density
def test_cdf_of_the_quantile_is_the_identity(density):
    u = levels()
    t = density.quantile(u)
    # No t between two neighbouring numbers exists: the CDF can miss u by the pdf times their distance.
    slack = resolution(density) + 2e-16 * density.pdf(t)
    assert ((density.cdf(t) - u).abs() <= slack).all()


@each_density
def test_quantile_of_the_cdf_is_the_identity_where_the_pdf_is_positive(density):
    t = torch.linspace(density.low, density.high, 997, dtype=torch.float64)[1:-1]
    t = t[density.pdf(t) > 1e-3]
    slack = 1e-15 + resolution(density) / density.pdf(t)
    assert ((density.quantile(density.cdf(t)) - t).abs() <= slack).all()


@each_density
def test_quantile_rises_from_low_to_high(density):
    t = density.quantile(torch.cat([tensor(0), levels(), tensor(1)]))
    assert (t.diff() >= -1e-15).all()
    assert t[0] == density.low
    assert t[-1] == density.high
    assert ((t >= density.low) & (t <= density.high)).all()
    assert density.quantile(tensor(-0.1, 1.1, math.nan)).isnan().all()


@each_density
def test_cdf_and_pdf_outside_the_support(density):
    outside = tensor(-0.5, density.low - 1e-9, density.high + 1e-9, 1.5)
    assert density.cdf(outside).tolist() == [0, 0, 1, 1]
    assert density.pdf(outside).tolist() == [0, 0, 0, 0]
    assert density.cdf(tensor(density.high)) == 1
    assert density.cdf(tensor(density.low)) == pytest.approx(0, abs=1e-15)


@each_density
def test_draws_follow_the_cdf(density):
    t = density.draw(uniform(11, "ks", 0, 100_000), torch.float64)
    assert scipy.stats.kstest(t, lambda x: density.cdf(torch.as_tensor(x)).numpy()).pvalue > 1e-3


@each_density
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_draws_are_never_exactly_zero_or_one(density, dtype):
    t = density.draw(tensor(0, 1e-300, 2.0**-53, 0.5, 1 - 2.0**-53, 1), dtype)
    assert t.dtype == dtype
    assert ((t > 0) & (t < 1)).all()


@each_density
def test_draws_refuse_half_precision(density):
    for dtype in (torch.float16, torch.bfloat16, torch.int64):
        with pytest.raises(ValueError, match="float32 or wider"):
            density.draw(tensor(0.5), dtype)


@each_density
def test_float32_arguments_are_computed_in_float64(density):
    t = torch.linspace(0, 1, 33)
    for function in (density.pdf, density.cdf, density.quantile):
        assert function(t).dtype == torch.float64
        assert torch.equal(function(t), function(t.double()))
        assert function(t.reshape(3, 11)).shape == (3, 11)
        assert torch.equal(function(t[::2]), function(t)[::2])
        assert function(t[0]).shape == ()


@each_density
def test_gaps_are_what_holds_no_mass(density):
    gaps = density.gaps()
    assert all(density.mass(lo, hi) == pytest.approx(0, abs=1e-15) for lo, hi in gaps)
    edges = [0.0, *[edge for gap in gaps for edge in gap], 1.0]
    filled = [(lo, hi) for lo, hi in zip(edges[::2], edges[1::2], strict=True) if lo < hi]
    assert sum(density.mass(lo, hi) for lo, hi in filled) == pytest.approx(1, abs=1e-14)
    for lo, hi in filled:
        inside = torch.linspace(lo, hi, 53, dtype=torch.float64)[1:-1]
        assert (density.pdf(inside) > 0).all()


@each_density
def test_mass_needs_ordered_ends(density):
    with pytest.raises(ValueError, match="lo <= hi"):
        density.mass(0.6, 0.5)
    with pytest.raises(ValueError, match="lo <= hi"):
        density.mass(math.nan, 0.5)
    assert density.mass(0.4, 0.4) == 0
    assert density.mass(-3, 5) == pytest.approx(1, abs=1e-15)


@each_density
def test_equality_hash_and_pickle(density):
    copy = pickle.loads(pickle.dumps(density))
    assert copy == density
    assert hash(copy) == hash(density)
    assert density != LogitNormal(0.123, 1)


@each_density
def test_text_form_reads_back(density):
    if "sha256" not in str(density):
        assert parse(str(density)) == density


@each_density
def test_draws_of_a_proposal_are_the_quantiles(density):
    u = uniform(3, "time", 0, 1000)
    drawn = Proposal(density).draw(1000, step=0, seed=3).t.double()
    error = (drawn - density.draw(u).double()).abs()
    # At most the neighbouring float32, or as close in probability.
    assert ((error <= 1.2e-7 * drawn) | (error * density.pdf(drawn) <= 1e-12)).all()


@each_density
def test_edges_are_where_the_pdf_is_not_smooth(density):
    edges = density.edges()
    assert edges == sorted(set(edges))
    assert all(0 < t < 1 for t in edges)


FIRSTS = [examples[0] for examples in EXAMPLES.values()]


@pytest.mark.parametrize("density", FIRSTS, ids=repr)
def test_check_holds_for_every_target(density):
    for target in FIRSTS:
        if any(target.mass(*gap) > 0 for gap in density.gaps()):
            with pytest.raises(UserError, match="never draws"):
                Proposal(target, density)
        # A floor bounds the weights: without one the quadrature, like a batch, need not find what is rare.
        assert Proposal(target, Mixture(density, 0.1)).check(1 << 12).error < 2e-3
