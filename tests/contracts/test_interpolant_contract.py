"""What every interpolant must keep; a new one is found through `INTERPOLANTS`."""

import math

import mpmath
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flowtempo.interpolants import INTERPOLANTS, VariancePreserving, interpolant

ALL = [interpolant(name) for name in INTERPOLANTS]
PATHS = [*ALL, VariancePreserving(0.5, 0.5), VariancePreserving(1e-4, 200.0)]
FUNCTIONS = ("alpha", "sigma", "d_alpha", "d_sigma", "wronskian", "log_snr", "d_log_snr")

each_path = pytest.mark.parametrize("path", PATHS, ids=str)


def grid(count: int = 513) -> torch.Tensor:
    return torch.linspace(0, 1, count, dtype=torch.float64)[1:-1]


def derivative(function, t):
    t = t.clone().requires_grad_()
    return torch.autograd.grad(function(t).sum(), t)[0]


@each_path
@pytest.mark.parametrize(
    ("name", "derived"), [("alpha", "d_alpha"), ("sigma", "d_sigma"), ("log_snr", "d_log_snr")]
)
def test_derivatives_match_autograd(path, name, derived):
    t = grid()
    expected = derivative(getattr(path, name), t)
    # Autograd's expm1 loses what is below 1e-16 of 1.
    torch.testing.assert_close(getattr(path, derived)(t), expected, rtol=1e-10, atol=1e-14)


@each_path
def test_wronskian_is_its_definition(path):
    t = grid()
    expected = path.d_alpha(t) * path.sigma(t) - path.alpha(t) * path.d_sigma(t)
    torch.testing.assert_close(path.wronskian(t), expected, rtol=1e-12, atol=0)
    assert (path.wronskian(t) > 0).all()


@each_path
def test_log_snr_is_twice_the_log_of_the_ratio(path):
    t = grid()
    torch.testing.assert_close(
        path.log_snr(t), 2 * (path.alpha(t) / path.sigma(t)).log(), rtol=1e-12, atol=1e-12
    )


def truth(path, t: float):
    """alpha, sigma and log_snr with 60 digits."""
    with mpmath.workdps(60):
        t = mpmath.mpf(t)
        if path.name == "linear":
            alpha, sigma = t, 1 - t
        elif path.name == "trigonometric":
            alpha, sigma = mpmath.sin(mpmath.pi * t / 2), mpmath.cos(mpmath.pi * t / 2)
        else:
            low, high = mpmath.mpf(path.beta_min), mpmath.mpf(path.beta_max)
            alpha = mpmath.exp(-((1 - t) ** 2) * (high - low) / 4 - (1 - t) * low / 2)
            sigma = mpmath.sqrt(1 - alpha**2)
        return alpha, sigma, 2 * mpmath.log(alpha / sigma)


@each_path
@pytest.mark.parametrize("t", [2.0**-60, 1e-9, 1e-3, 0.3, 0.5, 0.9, 1 - 1e-6, 1 - 2.0**-40, 1 - 2.0**-53])
def test_float64_keeps_its_digits_up_to_the_ends(path, t):
    tensor = torch.tensor(t, dtype=torch.float64)
    alpha, sigma, log_snr = truth(path, t)
    # exp(L) turns the rounding of L, up to 50 here, into a relative error.
    assert abs(float(path.alpha(tensor)) / alpha - 1) < 2e-14
    assert abs(float(path.sigma(tensor)) / sigma - 1) < 1e-15
    assert abs(float(path.log_snr(tensor)) - log_snr) < 1e-15 * (10 + abs(log_snr))


@each_path
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_ends_are_exact(path, dtype):
    ends = torch.tensor([0.0, 1.0], dtype=dtype)
    values = {name: getattr(path, name)(ends) for name in FUNCTIONS}
    assert not any(value.isnan().any() for value in values.values())
    assert values["alpha"][1] == 1
    assert values["sigma"][1] == 0
    assert values["log_snr"][1] == math.inf
    for name in ("alpha", "sigma", "d_alpha"):
        assert values[name].isfinite().all()
    if path.name == "variance_preserving":
        assert values["log_snr"][0].isfinite()
        assert values["d_sigma"][1] == -math.inf
        assert values["wronskian"][1] == math.inf
    else:
        assert values["alpha"][0] == 0
        assert values["sigma"][0] == 1
        assert values["log_snr"][0] == -math.inf
        assert values["d_sigma"].isfinite().all()
        assert values["wronskian"].isfinite().all()
    x1, x0 = torch.randn(2, 2, 3, dtype=dtype, generator=torch.Generator().manual_seed(0))
    assert torch.equal(path.mix(x1, x0, torch.ones(2, dtype=dtype)), x1)


@each_path
def test_log_snr_rises_strictly(path):
    ends = torch.logspace(-12, -3, 50, dtype=torch.float64)
    t = torch.cat([ends, grid(200), 1 - ends]).unique()
    assert (path.log_snr(t).diff() > 0).all()


@each_path
def test_log_snr_to_time_and_back(path):
    log_snr = torch.linspace(-14, 14, 561, dtype=torch.float64)
    t = path.time(log_snr)
    # A unit in the last place of t (or of 1 - t < 1) moves the log-SNR by its derivative times that.
    rounding = 4e-16 * (4 + path.d_log_snr(t) * t.abs().clamp_min(1))
    assert ((path.log_snr(t) - log_snr).abs() <= rounding).all()
    assert ((path.log_snr(t) - log_snr).abs() < 1e-10).all()


@each_path
@settings(deadline=None, derandomize=True)
@given(t=st.floats(1e-9, 1 - 1e-9))
def test_time_to_log_snr_and_back(path, t):
    value = torch.tensor(t, dtype=torch.float64)
    back = path.time(path.log_snr(value))
    # The log-SNR is rounded at 1e-15 of its size, which moves t by that over the derivative.
    slack = 1e-15 * (2 + path.log_snr(value).abs()) / path.d_log_snr(value) + 4e-16
    assert abs(back - value) <= slack


@each_path
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_time_of_extreme_log_snr(path, dtype):
    log_snr = torch.tensor([-math.inf, -2000.0, 2000.0, math.inf], dtype=dtype)
    t = path.time(log_snr)
    assert not t.isnan().any()
    assert (t[2:] == 1).all()
    assert (t[:2] <= 0).all()


@each_path
@pytest.mark.parametrize(
    ("given_dtype", "expected"),
    [
        (torch.float16, torch.float32),
        (torch.bfloat16, torch.float32),
        (torch.float32, torch.float32),
        (torch.float64, torch.float64),
    ],
)
def test_dtype_is_kept_but_never_below_float32(path, given_dtype, expected):
    t = torch.full((2, 3), 0.5, dtype=given_dtype)
    for name in (*FUNCTIONS, "time"):
        result = getattr(path, name)(t)
        assert result.dtype == expected
        assert result.shape == (2, 3)
    with pytest.raises(ValueError, match="floating-point"):
        path.alpha(torch.tensor([1]))


@each_path
def test_velocity_is_the_time_derivative_of_mix(path):
    random = torch.Generator().manual_seed(0)
    x1, x0 = torch.randn(2, 5, 3, 2, dtype=torch.float64, generator=random)
    t = torch.linspace(0.1, 0.9, 5, dtype=torch.float64)
    _, expected = torch.autograd.functional.jvp(lambda s: path.mix(x1, x0, s), t, torch.ones_like(t))
    torch.testing.assert_close(path.velocity(x1, x0, t), expected, rtol=1e-10, atol=1e-12)


@each_path
@pytest.mark.parametrize("method", ["mix", "velocity"])
@pytest.mark.parametrize(
    ("first", "second", "times"),
    [((4, 3), (4, 3), (4, 1)), ((4, 3), (4, 3), (1,)), ((4, 3), (4, 1), (4,)), ((4, 4), (4, 4), ())],
)
def test_wrong_shapes_never_broadcast(path, method, first, second, times):
    with pytest.raises(ValueError, match="shape"):
        getattr(path, method)(torch.zeros(first), torch.zeros(second), torch.full(times, 0.5))


@each_path
def test_mix_follows_the_batch_dtype(path):
    t = torch.tensor([0.5], dtype=torch.float64)
    assert path.mix(torch.ones(1, 2), torch.ones(1, 2), t).dtype == torch.float32
    half = torch.ones(1, 2, dtype=torch.bfloat16)
    assert path.mix(half, half, t).dtype == torch.float32
    double = torch.ones(1, 2, dtype=torch.float64)
    assert path.mix(double, double, t.float()).dtype == torch.float64


@each_path
def test_velocity_coefficients_invert_the_path(path):
    t = grid(33)
    x1, x0 = torch.randn(2, 31, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    x_t, u = path.mix(x1, x0, t), path.velocity(x1, x0, t)
    for coefficients, expected in ((path.velocity_to_data(t), x1), (path.velocity_to_noise(t), x0)):
        torch.testing.assert_close(
            coefficients[0] * u + coefficients[1] * x_t, expected, rtol=1e-9, atol=1e-9
        )
    ends = torch.tensor([0.0, 1.0], dtype=torch.float64)
    for pair in (path.velocity_to_data(ends), path.velocity_to_noise(ends)):
        assert all(value.isfinite().all() for value in pair)
