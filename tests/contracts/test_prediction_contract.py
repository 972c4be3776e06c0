"""Every prediction under every interpolant; new ones are found through the registries."""

import itertools
import math

import pytest
import torch
from interpolant_examples import PATHS, still_at_noise

from flowtempo.errors import UserError
from flowtempo.interpolants import Trigonometric, VarianceExploding, VariancePreserving
from flowtempo.predictions import PREDICTIONS, convert, error_factor, scaled_error_factor, target

PAIRS = list(itertools.product(PREDICTIONS, PREDICTIONS))
ENDS = torch.tensor([0.0, 1.0], dtype=torch.float64)

each_path = pytest.mark.parametrize("path", PATHS, ids=str)


def times(path, limit=9):
    """Times at which neither data nor noise drown in the other's rounding."""
    t = path.time(torch.linspace(-limit, limit, 50, dtype=torch.float64))
    return t[(t > 0) & (t < 1)]


def batch(path, t):
    x1, x0 = torch.randn(2, len(t), 3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    return x1, x0, path.mix(x1, x0, t)


@each_path
def test_conversion_equals_the_target_and_round_trips(path):
    t = times(path)
    x1, x0, x_t = batch(path, t)
    targets = {prediction: target(prediction, x1, x0, t, path) for prediction in PREDICTIONS}
    for source, to in PAIRS:
        there = convert(targets[source], x_t, t, path, source=source, to=to)
        # Steep paths have large velocities near the data, of which what is small is a difference.
        slack = 1e-11 * targets[to].abs().amax((1, 2), keepdim=True).clamp_min(1)
        assert ((there - targets[to]).abs() <= slack).all(), (source, to)
        back = convert(there, x_t, t, path, source=to, to=source)
        slack = 1e-10 * targets[source].abs().amax((1, 2), keepdim=True).clamp_min(1)
        assert ((back - targets[source]).abs() <= slack).all(), (source, to)


@each_path
def test_conversion_of_an_imperfect_prediction_round_trips(path):
    t = times(path)
    _, _, x_t = batch(path, t)
    value = torch.randn(x_t.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    for source, to in PAIRS:
        there = convert(value, x_t, t, path, source=source, to=to)
        back = convert(there, x_t, t, path, source=to, to=source)
        # Passing through a quantity that is larger by the condition number costs that many digits.
        scale = max(1.0, float(there.abs().max()), float(x_t.abs().max()))
        torch.testing.assert_close(back, value, rtol=1e-10, atol=2e-12 * scale)


@each_path
def test_error_factor_is_the_ratio_of_errors(path):
    for prediction in PREDICTIONS:
        t = times(path)
        x1, _, x_t = batch(path, t)
        other = x1 + torch.randn(x1.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
        values = [convert(data, x_t, t, path, source="data", to=prediction) for data in (x1, other)]
        ratio = (values[0] - values[1]).square().sum((1, 2)) / (x1 - other).square().sum((1, 2))
        torch.testing.assert_close(error_factor(prediction, path, t), ratio, rtol=1e-8, atol=0)
        scaled = scaled_error_factor(prediction, path, t)
        torch.testing.assert_close(scaled, ratio * path.sigma(t) ** 2, rtol=1e-8, atol=0)


@each_path
def test_gaussian_posterior_mean_in_every_form(path):
    # x1 ~ N(0, s^2): E[x1 | x] = a s^2 x / v, E[x0 | x] = m x / v, score = -x / v, v = a^2 s^2 + m^2.
    s = 0.7
    t = times(path, 6)
    _, _, x_t = batch(path, t)
    a, m, da, dm = (
        getattr(path, name)(t)[:, None, None] for name in ("alpha", "sigma", "d_alpha", "d_sigma")
    )
    v = a**2 * s**2 + m**2
    expected = {
        "data": a * s**2 * x_t / v,
        "noise": m * x_t / v,
        "score": -x_t / v,
        "velocity": (da * a * s**2 + dm * m) * x_t / v,
        "v": (a * m - m * a * s**2) * x_t / v,
    }
    for prediction in PREDICTIONS:
        got = convert(expected["data"], x_t, t, path, source="data", to=prediction)
        torch.testing.assert_close(got, expected[prediction], rtol=1e-9, atol=1e-11)


@each_path
@pytest.mark.parametrize("to", ["data", "noise"])
@pytest.mark.parametrize("source", ["velocity", "v"])
def test_no_pole_from_velocity_and_v_at_the_ends(path, source, to):
    x1, x0, x_t = batch(path, ENDS)
    wanted = x1 if to == "data" else x0
    value = target(source, x1, x0, ENDS, path)
    finite = value.isfinite().all((1, 2))
    # Any finite number in place of an infinite velocity: it must not matter, or not spoil the result.
    result = convert(torch.where(value.isfinite(), value, 1.0), x_t, ENDS, path, source=source, to=to)
    if source == "velocity" and still_at_noise(path):
        # The velocity is 0 there, which says nothing of the data.
        finite[0] = False
        result[0] = 0
    assert result.isfinite().all()
    torch.testing.assert_close(result[finite], wanted[finite], rtol=1e-12, atol=1e-10)
    if to == "data":
        torch.testing.assert_close(result[1], x1[1], rtol=1e-12, atol=1e-10)


@each_path
def test_error_factor_at_the_ends(path):
    alpha, sigma, wronskian = path.alpha(ENDS), path.sigma(ENDS), path.wronskian(ENDS)
    expected = {
        "velocity": (wronskian / sigma) ** 2,
        "noise": (alpha / sigma) ** 2,
        "data": torch.ones(2, dtype=torch.float64),
        "score": (alpha / sigma**2) ** 2,
        "v": ((alpha**2 + sigma**2) / sigma) ** 2,
    }
    for prediction, factor in expected.items():
        got = error_factor(prediction, path, ENDS)
        assert not got.isnan().any()
        torch.testing.assert_close(got, factor, rtol=1e-13, atol=0)
        if prediction != "data" and float(sigma[1]) == 0:
            assert got[1] == math.inf


def test_variance_exploding_has_a_still_data_scale():
    # x_t = x1 + sigma x0 with u = sigma' x0, so that x0 = u / sigma' and x1 = x_t - sigma u / sigma'.
    path = VarianceExploding()
    t = torch.linspace(0, 1, 9, dtype=torch.float64)
    x1, x0, x_t = batch(path, t)
    u = target("velocity", x1, x0, t, path)
    rate = -math.log(80 / 0.002)
    sigma = (80 * torch.tensor(0.002 / 80, dtype=torch.float64) ** t)[:, None, None]
    torch.testing.assert_close(x_t, x1 + sigma * x0, rtol=1e-12, atol=0)
    torch.testing.assert_close(u, rate * sigma * x0, rtol=1e-12, atol=0)
    torch.testing.assert_close(convert(u, x_t, t, path, source="velocity", to="noise"), x0)
    torch.testing.assert_close(convert(u, x_t, t, path, source="velocity", to="data"), x1)
    score = convert(u, x_t, t, path, source="velocity", to="score")
    # The probability-flow equation of EDM: dx / dsigma = -sigma score.
    torch.testing.assert_close(u / (rate * sigma), -sigma * score)
    factor = error_factor("velocity", path, t)
    torch.testing.assert_close(factor, torch.full_like(t, rate**2))


@each_path
def test_results_are_float32_at_least(path):
    for prediction in PREDICTIONS:
        half = torch.ones(2, 3, dtype=torch.float16)
        t = torch.full((2,), 0.5)
        assert target(prediction, half, half, t, path).dtype == torch.float32
        other = "noise" if prediction != "noise" else "data"
        assert convert(half, half, t, path, source=prediction, to=other).dtype == torch.float32


@each_path
def test_wrong_shapes_never_broadcast(path):
    for prediction in PREDICTIONS:
        x = torch.zeros(4, 3)
        for first, second, t in [(x, x[:1], torch.rand(4)), (x, x, torch.rand(4, 1)), (x, x, torch.rand(1))]:
            with pytest.raises(ValueError, match="shape"):
                target(prediction, first, second, t, path)
            with pytest.raises(ValueError, match="shape"):
                convert(first, second, t, path, source=prediction, to="data")


def test_trigonometric_velocity_is_a_multiple_of_v():
    path = Trigonometric()
    t = torch.linspace(0, 1, 11, dtype=torch.float64)
    x1, x0, _ = batch(path, t)
    torch.testing.assert_close(
        target("velocity", x1, x0, t, path),
        -math.pi / 2 * target("v", x1, x0, t, path),
        rtol=1e-14,
        atol=1e-14,
    )


def test_variance_preserving_velocity_has_its_pole_at_the_data_end():
    path = VariancePreserving()
    t = torch.ones(1, dtype=torch.float64)
    x1, x0, _ = batch(path, t)
    assert target("velocity", x1, x0, t, path).isinf().all()


def test_same_source_and_result_is_the_value_itself():
    value = torch.randn(2, 3)
    assert convert(value, value, torch.rand(2), Trigonometric(), source="v", to="v") is value


def test_unknown_prediction_lists_the_known_ones():
    x, t = torch.zeros(1, 2), torch.full((1,), 0.5)
    for call in (
        lambda: target("eps", x, x, t, Trigonometric()),
        lambda: convert(x, x, t, Trigonometric(), source="eps", to="v"),
        lambda: convert(x, x, t, Trigonometric(), source="v", to="eps"),
        lambda: error_factor("eps", Trigonometric(), t),
    ):
        with pytest.raises(UserError, match="'eps': use one of velocity, noise, data, score, v"):
            call()
