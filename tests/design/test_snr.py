"""Densities over log-SNR: closed forms, draws, masses, translation by the standard deviation, weights."""

import itertools
import math

import pytest
import torch

from flowtempo.densities import LogitNormal, Mixture, Tabulated, Truncated, Uniform, parse
from flowtempo.design.snr import LOG_SNR_EDGES, SnrPdf, tenths
from flowtempo.errors import UserError
from flowtempo.interpolants import Linear, Shifted, Trigonometric, interpolant
from flowtempo.objectives import weighting
from flowtempo.predictions import PREDICTIONS
from flowtempo.randomness import uniform

LOG_SNR = torch.linspace(-60, 60, 241, dtype=torch.float64)
PATHS = [
    "linear",
    "trigonometric",
    "variance_preserving",
    "linear_vp",
    "polynomial(2)",
    "variance_exploding",
    "ddpm_linear",
    "ddpm_cosine",
    "zero_terminal_snr(ddpm_linear)",
    "shifted_cosine(64, 256)",
    "chen_sigmoid",
    "shifted(linear, 3)",
]
TABLE = Tabulated([0.0, 0.3, 0.4, 1.0], [0.5, 2.0, 1.0, 0.2])
DENSITIES = [
    Uniform(),
    LogitNormal(-0.75, 1.3),
    Mixture(LogitNormal(1.0, 0.5), 0.1),
    Truncated(LogitNormal(0.0, 1.0), 0.1, 0.8),
    TABLE,
]
EDGES = (-math.inf, *LOG_SNR_EDGES, math.inf)


def normal_tail(z):
    return math.erfc(z / math.sqrt(2)) / 2


@pytest.mark.parametrize("std", [0.25, 1.0, 1.7])
def test_closed_forms_hold_in_the_tails(std):
    shifted = LOG_SNR - 2 * math.log(std)
    normal = torch.exp(-((shifted + 1.5) ** 2) / (2 * 2.6**2)) / (2.6 * math.sqrt(2 * math.pi))
    tail = torch.exp(-shifted.abs() / 2)
    logistic = tail / (2 * (1 + tail) ** 2)
    secant = tail / (math.pi * (1 + tail**2))
    for density, path, true in (
        (LogitNormal(-0.75, 1.3), Linear(), normal),
        (Uniform(), Linear(), logistic),
        (Uniform(), Trigonometric(), secant),
    ):
        found = SnrPdf(density, path, std).pdf(LOG_SNR)
        torch.testing.assert_close(found, true, rtol=1e-10, atol=0)


def test_masses_and_quantiles_keep_their_digits_in_the_tails():
    """The upper tail of a normal: in t it lies 1e-7 to 1e-13 from 1, where differences have no digits."""
    snr = SnrPdf(LogitNormal(0.0, 3.0), Linear(), std=2.0)
    shift = 2 * math.log(2)
    for low, high in ((30.0, 40.0), (50.0, 60.0), (-60.0, -50.0)):
        near, far = sorted((abs(low - shift), abs(high - shift)))
        true = normal_tail(near / 6) - normal_tail(far / 6)
        assert snr.mass(low, high) == pytest.approx(true, rel=1e-9, abs=0)
    u = torch.tensor([1e-12, 0.5, 1 - 2.0**-40], dtype=torch.float64)
    true = 6 * torch.special.ndtri(torch.tensor([1e-12, 0.5, 2.0**-40], dtype=torch.float64))
    true[2] *= -1
    torch.testing.assert_close(snr.quantile(u), true + shift, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("density", DENSITIES, ids=str)
def test_the_pdf_integrates_to_the_masses_which_sum_to_one(path, density):
    snr = SnrPdf(density, interpolant(path), std=0.6)
    masses = [snr.mass(low, high) for low, high in itertools.pairwise(EDGES)]
    assert sum(masses) == pytest.approx(1, abs=1e-12)
    assert sum(tenths(density)) == pytest.approx(1, abs=1e-12)
    middles = -10 + (torch.arange(4000, dtype=torch.float64) + 0.5) * 20 / 4000
    sums = snr.pdf(middles).reshape(10, 400).sum(1) * 20 / 4000
    # Jumps (ends of a path, nodes of a schedule) cost a midpoint rule one cell.
    assert sums.tolist() == pytest.approx(masses[1:-1], rel=1e-3, abs=1e-3)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("density", DENSITIES, ids=str)
def test_draws_follow_the_cdf(path, density):
    """Kolmogorov-Smirnov at 1 in 10,000; where a path stands still, draws share one log-SNR."""
    count = 5000
    u = uniform(3, "snr", 0, count)
    t = density.draw(u, torch.float64)
    drawn = (interpolant(path).log_snr(t) + 2 * math.log(1.7)).sort().values
    expected = SnrPdf(density, interpolant(path), std=1.7).cdf(drawn)
    steps = torch.arange(count + 1, dtype=torch.float64) / count
    apart = torch.maximum((expected - steps[:-1]).abs(), (expected - steps[1:]).abs())
    assert float(apart.max()) < 2.23 / math.sqrt(count)


@pytest.mark.parametrize(
    "text",
    [
        "uniform",
        "logit_normal(0.4, 1.2)",
        "mode(1.29)",
        "mode(-0.7)",
        "cosmap",
        "edm(-1.2, 1.2)",
        "edm(-1.2, 1.2, trigonometric)",
        "beta(2, 3.5)",
        "piecewise([0, 0.3, 1], [1, 3])",
        "speed(5, tau=0.7)",
        "mixture(logit_normal(0.4, 1.2), 0.2)",
        "blend(cosmap, beta(2, 3.5), 0.3)",
        "truncated(beta(2, 3.5), 0.1, 0.95)",
        "shifted(logit_normal(0.4, 1.2), 3)",
        "power(logit_normal(0.4, 1.2), 0.5)",
    ],
)
def test_what_is_computed_from_the_data_end_is_the_same_density(text):
    """Beyond t = 1/2 most densities are computed from 1 - t; here t itself still has its digits."""
    density, inner = parse(text), torch.linspace(0.1, 8, 40, dtype=torch.float64)
    snr, t = SnrPdf(density, Linear()), Linear().time(inner)
    torch.testing.assert_close(snr.pdf(inner), density.pdf(t) / Linear().d_log_snr(t), rtol=1e-8, atol=1e-12)
    assert snr.mass(1.0, 3.0) == pytest.approx(
        density.mass(*Linear().time(inner.new_tensor([1, 3])).tolist())
    )
    u = torch.linspace(0.55, 0.999, 20, dtype=torch.float64)
    torch.testing.assert_close(snr.quantile(u), Linear().log_snr(density.quantile(u)), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("path", PATHS)
def test_the_standard_deviation_translates(path):
    density, by = LogitNormal(0.2, 1.1), 2 * math.log(3)
    one, three = SnrPdf(density, interpolant(path)), SnrPdf(density, interpolant(path), std=3.0)
    inner = torch.linspace(-9, 9, 61, dtype=torch.float64)
    for function in ("pdf", "cdf", "time", "weight", "emphasis"):
        before, after = getattr(one, function)(inner), getattr(three, function)(inner + by)
        torch.testing.assert_close(after, before, rtol=1e-9, atol=1e-12)
    assert three.mass(-2 + by, 3 + by) == pytest.approx(one.mass(-2, 3), rel=1e-12)
    u = torch.tensor([0.1, 0.5, 0.9], dtype=torch.float64)
    torch.testing.assert_close(three.quantile(u), one.quantile(u) + by, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("path", PATHS)
def test_nothing_lies_where_the_path_does_not_go(path):
    snr = SnrPdf(Uniform(), interpolant(path))
    values = snr.pdf(torch.tensor([-math.inf, *LOG_SNR.tolist(), math.inf], dtype=torch.float64))
    assert bool(values.isfinite().all())
    assert bool((values >= 0).all())
    assert values[0] == values[-1] == 0
    ends = interpolant(path).log_snr(torch.tensor([0.0, 1.0], dtype=torch.float64))
    inside = LOG_SNR.clamp(*ends.tolist()) == LOG_SNR
    assert bool((snr.pdf(LOG_SNR)[~inside] == 0).all())


def test_known_masses_of_a_band_and_of_a_shift():
    """Shares of the noisy end of LN(0, 1), as it is and with shifts of 5 and 3; tau = 1 - t."""
    assert LogitNormal(0.0, 1.0).mass(0, 0.125) == pytest.approx(0.0258328, abs=5e-8)
    for shift, below, true in ((5, 0.125, 0.368257), (3, 0.1, 0.135969)):
        edge = float(Linear().log_snr(torch.tensor(below, dtype=torch.float64)))
        moved = SnrPdf(LogitNormal(0.0, 1.0), Shifted(Linear(), shift))
        assert moved.mass(-math.inf, edge) == pytest.approx(true, abs=5e-7)
        same = SnrPdf(LogitNormal(-math.log(shift), 1.0), Linear())
        torch.testing.assert_close(moved.pdf(LOG_SNR), same.pdf(LOG_SNR), rtol=1e-9, atol=0)


def test_weights_put_all_predictions_on_the_data_error():
    inner = torch.linspace(-9, 9, 37, dtype=torch.float64)
    ratio = inner.exp()
    true = {
        "data": torch.ones_like(ratio),
        "noise": ratio,
        "score": ratio,
        "velocity": (1 + ratio.sqrt()) ** 2,
        "v": (1 + ratio) ** 2 / (1 + ratio.sqrt()) ** 2,
    }
    for prediction in PREDICTIONS:
        snr = SnrPdf(Uniform(), Linear(), prediction=prediction)
        torch.testing.assert_close(snr.weight(inner), true[prediction], rtol=1e-10, atol=0)
        torch.testing.assert_close(snr.emphasis(inner), snr.pdf(inner) * true[prediction])
    capped = SnrPdf(Uniform(), Linear(), prediction="noise", weighting=weighting("min_snr(5)"))
    torch.testing.assert_close(capped.weight(inner), ratio.clamp(max=5), rtol=1e-10, atol=0)


def test_the_emphasis_is_the_targets_and_its_bands_are_integrals():
    """Uniform velocity on the linear path: density x weight = exp(log_snr / 2) / 2."""
    snr = SnrPdf(LogitNormal(0.0, 1.0), Linear(), target=Uniform())
    inner = torch.linspace(-9, 9, 37, dtype=torch.float64)
    torch.testing.assert_close(snr.emphasis(inner), (inner / 2).exp() / 2, rtol=1e-10, atol=0)
    bands = torch.tensor(
        [math.exp(high / 2) - math.exp(low / 2) for low, high in itertools.pairwise(LOG_SNR_EDGES)],
        dtype=torch.float64,
    )
    torch.testing.assert_close(snr.emphasis_bands(), bands, rtol=1e-11, atol=0)
    torch.testing.assert_close(
        snr.normalised_emphasis(inner), snr.emphasis(inner) / bands.sum(), rtol=1e-11, atol=0
    )
    nothing = SnrPdf(Truncated(Uniform(), 0.999, 1.0), Linear())
    assert nothing.normalised_emphasis(inner).tolist() == [0.0] * 37


def test_names_of_the_distributions():
    assert SnrPdf(LogitNormal(-0.75, 1.0), Linear(), std=math.e).closed_form() == (
        "normal with mean 0.5 and standard deviation 2"
    )
    assert SnrPdf(Uniform(), Linear(), std=math.e).closed_form() == "logistic with mean 2 and scale 2"
    assert "sech((log_snr - 2) / 2) / (2 pi)" in SnrPdf(Uniform(), Trigonometric(), std=math.e).closed_form()
    assert "sech(" in SnrPdf(parse("cosmap"), Linear()).closed_form()
    shifted = "normal with mean -2.19722 and standard deviation 2"
    assert SnrPdf(parse("shifted(logit_normal(0, 1), 3)"), Linear()).closed_form() == shifted
    assert SnrPdf(LogitNormal(0.0, 1.0), Shifted(Linear(), 3)).closed_form() == shifted
    for path in (Linear(), Trigonometric()):
        edm = parse(f"edm(-1.2, 1.2, {path})")
        assert SnrPdf(edm, path).closed_form() == "normal with mean 2.4 and standard deviation 2.4"
    assert SnrPdf(edm, Linear()).closed_form() is None
    assert SnrPdf(TABLE, Linear()).closed_form() is None
    assert SnrPdf(parse("cosmap"), Trigonometric()).closed_form() is None
    assert SnrPdf(LogitNormal(0.0, 1.0), Shifted(Trigonometric(), 3)).closed_form() is None


def test_wrong_values_are_refused():
    for std in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(UserError, match=r"std = .* must be a finite number above 0"):
            SnrPdf(Uniform(), Linear(), std=std)
    with pytest.raises(UserError, match="unknown prediction"):
        SnrPdf(Uniform(), Linear(), prediction="speed")
    with pytest.raises(ValueError, match="mass needs low <= high"):
        SnrPdf(Uniform(), Linear()).mass(1.0, 0.0)
