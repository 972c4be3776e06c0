"""Every prediction under every interpolant; new ones are found through the registries."""

import itertools
import math

import pytest
import torch

from flowtempo.errors import UserError
from flowtempo.interpolants import INTERPOLANTS, Trigonometric, VariancePreserving, interpolant
from flowtempo.predictions import PREDICTIONS, convert, error_factor, target

PATHS = [interpolant(name) for name in INTERPOLANTS]
PAIRS = list(itertools.product(PREDICTIONS, PREDICTIONS))

each_path = pytest.mark.parametrize("path", PATHS, ids=str)
each_prediction = pytest.mark.parametrize("prediction", PREDICTIONS)


def batch(path, t):
    x1, x0 = torch.randn(2, len(t), 3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    return x1, x0, path.mix(x1, x0, t)


@each_path
@pytest.mark.parametrize(("source", "to"), PAIRS)
def test_conversion_equals_the_target_and_round_trips(path, source, to):
    t = torch.linspace(0.01, 0.99, 50, dtype=torch.float64)
    x1, x0, x_t = batch(path, t)
    value, wanted = target(source, x1, x0, t, path), target(to, x1, x0, t, path)
    there = convert(value, x_t, t, path, source=source, to=to)
    torch.testing.assert_close(there, wanted, rtol=1e-10, atol=1e-10)
    back = convert(there, x_t, t, path, source=to, to=source)
    torch.testing.assert_close(back, value, rtol=1e-10, atol=1e-10)


@each_path
@pytest.mark.parametrize(("source", "to"), PAIRS)
def test_conversion_of_an_imperfect_prediction_round_trips(path, source, to):
    t = torch.linspace(0.01, 0.99, 50, dtype=torch.float64)
    _, _, x_t = batch(path, t)
    value = torch.randn(x_t.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    there = convert(value, x_t, t, path, source=source, to=to)
    back = convert(there, x_t, t, path, source=to, to=source)
    # Passing through a quantity that is larger by the condition number costs that many digits.
    scale = max(1.0, float(there.abs().max()), float(x_t.abs().max()))
    torch.testing.assert_close(back, value, rtol=1e-10, atol=1e-12 * scale)


@each_path
@each_prediction
def test_error_factor_is_the_ratio_of_errors(path, prediction):
    t = torch.linspace(0.01, 0.99, 50, dtype=torch.float64)
    x1, _, x_t = batch(path, t)
    other = x1 + torch.randn(x1.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    values = [convert(data, x_t, t, path, source="data", to=prediction) for data in (x1, other)]
    ratio = (values[0] - values[1]).square().sum((1, 2)) / (x1 - other).square().sum((1, 2))
    torch.testing.assert_close(error_factor(prediction, path, t), ratio, rtol=1e-9, atol=0)


@each_path
@each_prediction
def test_gaussian_posterior_mean_in_every_form(path, prediction):
    # x1 ~ N(0, s^2): E[x1 | x] = a s^2 x / v, E[x0 | x] = m x / v, score = -x / v, v = a^2 s^2 + m^2.
    s = 0.7
    t = torch.linspace(0.05, 0.95, 19, dtype=torch.float64)
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
    got = convert(expected["data"], x_t, t, path, source="data", to=prediction)
    torch.testing.assert_close(got, expected[prediction], rtol=1e-10, atol=1e-12)


@each_path
@pytest.mark.parametrize("to", ["data", "noise"])
@pytest.mark.parametrize("source", ["velocity", "v"])
def test_no_pole_from_velocity_and_v_at_the_ends(path, source, to):
    t = torch.tensor([0.0, 1.0], dtype=torch.float64)
    x1, x0, x_t = batch(path, t)
    finite = torch.ones_like(x_t) if path.name == "variance_preserving" else None
    value = finite if source == "velocity" and finite is not None else target(source, x1, x0, t, path)
    result = convert(value, x_t, t, path, source=source, to=to)
    assert result.isfinite().all()
    if to == "data":
        torch.testing.assert_close(result[1], x1[1])
    if finite is None:
        torch.testing.assert_close(result, x1 if to == "data" else x0, rtol=1e-14, atol=1e-14)


@each_path
def test_error_factor_at_the_ends(path):
    ends = torch.tensor([0.0, 1.0], dtype=torch.float64)
    factors = {prediction: error_factor(prediction, path, ends) for prediction in PREDICTIONS}
    assert not any(factor.isnan().any() for factor in factors.values())
    assert factors["data"].tolist() == [1, 1]
    assert all(factors[prediction][1] == math.inf for prediction in PREDICTIONS if prediction != "data")
    if path.name != "variance_preserving":
        assert factors["noise"][0] == factors["score"][0] == 0
        assert factors["velocity"][0] == pytest.approx(float(path.wronskian(ends)[0]) ** 2)


@each_path
@each_prediction
def test_results_are_float32_at_least(path, prediction):
    half = torch.ones(2, 3, dtype=torch.float16)
    t = torch.full((2,), 0.5)
    assert target(prediction, half, half, t, path).dtype == torch.float32
    other = "noise" if prediction != "noise" else "data"
    assert convert(half, half, t, path, source=prediction, to=other).dtype == torch.float32


@each_path
@each_prediction
def test_wrong_shapes_never_broadcast(path, prediction):
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
