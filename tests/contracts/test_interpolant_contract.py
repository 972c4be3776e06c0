"""What every interpolant must keep; a new one must add an example to `interpolant_examples`."""

import copy
import itertools
import math
import pickle

import mpmath
import numpy as np
import pytest
import torch
from interpolant_examples import (
    EXAMPLES,
    PATHS,
    infinite_at_data,
    infinite_at_noise,
    still_at_noise,
    truth,
)

from flowtempo.interpolants import (
    INTERPOLANTS,
    ChenCosine,
    DdpmLinear,
    Polynomial,
    Shifted,
    VariancePreserving,
    ZeroTerminalSnr,
    interpolant,
)

DERIVATIVES = (("alpha", "d_alpha"), ("sigma", "d_sigma"), ("log_snr", "d_log_snr"))
FUNCTIONS = ("alpha", "sigma", "d_alpha", "d_sigma", "wronskian", "log_snr", "d_log_snr")
ENDS = torch.tensor([0.0, 1.0], dtype=torch.float64)

each_path = pytest.mark.parametrize("path", PATHS, ids=str)


def grid(count: int = 513) -> torch.Tensor:
    return torch.linspace(0, 1, count, dtype=torch.float64)[1:-1]


def moving(path, t: torch.Tensor) -> torch.Tensor:
    """Those times at which the path is not cut to its lowest log-SNR."""
    return t[path.log_snr(t) > path.log_snr(ENDS)[0]]


def derivative(function, t):
    t = t.clone().requires_grad_()
    # Some are constant.
    return torch.autograd.grad(function(t).sum() + 0 * t.sum(), t)[0]


def test_every_interpolant_has_an_example():
    assert set(EXAMPLES) == set(INTERPOLANTS)


@each_path
def test_text_form_reads_back(path):
    assert str(path).split("(")[0] == path.name
    assert INTERPOLANTS[path.name] is type(path)
    assert interpolant(str(path)) == path
    assert hash(interpolant(str(path))) == hash(path)


def test_text_form_leaves_defaults_out():
    for path, text in {
        VariancePreserving(): "variance_preserving",
        VariancePreserving(0.2): "variance_preserving(0.2)",
        VariancePreserving(0.1, 30): "variance_preserving(0.1, 30)",
        ZeroTerminalSnr(DdpmLinear(50)): "zero_terminal_snr(ddpm_linear(50))",
        ZeroTerminalSnr(DdpmLinear()): "zero_terminal_snr(ddpm_linear)",
        ChenCosine(0.2, 1, 1, 0.5): "chen_cosine(0.2, 1, 1, 0.5)",
        Shifted(Polynomial(2), 2.5): "shifted(polynomial(2), 2.5)",
    }.items():
        assert str(path) == text


@each_path
def test_copies_are_equal(path):
    t = grid(9)
    for other in (copy.deepcopy(path), pickle.loads(pickle.dumps(path))):
        assert other == path
        assert torch.equal(other.log_snr(t), path.log_snr(t))


@each_path
def test_derivatives_match_autograd(path):
    t = grid()
    for name, derived in DERIVATIVES:
        expected = derivative(getattr(path, name), t)
        # Autograd's expm1 loses what is below 1e-16 of 1.
        torch.testing.assert_close(getattr(path, derived)(t), expected, rtol=1e-10, atol=1e-13)


@each_path
def test_values_are_the_integral_of_the_derivatives(path):
    # Independent of autograd, which would follow a branch that jumps. Kinks fall on multiples of 1 / T.
    nodes, weights = (torch.from_numpy(values) for values in np.polynomial.legendre.leggauss(12))
    for (low, high), (name, derived) in itertools.product(
        [(0.25, 0.26), (0.5, 0.51), (0.88, 0.89)], DERIVATIVES
    ):
        edges = torch.linspace(low, high, 11, dtype=torch.float64)
        half = edges.diff()[:, None] / 2
        t = edges[:-1, None] + half * (1 + nodes)
        integral = float((half * weights * getattr(path, derived)(t)).sum())
        ends = getattr(path, name)(edges[[0, -1]])
        assert integral == pytest.approx(float(ends[1] - ends[0]), rel=1e-3, abs=1e-13)


@each_path
def test_wronskian_is_its_definition(path):
    t = grid()
    expected = path.d_alpha(t) * path.sigma(t) - path.alpha(t) * path.d_sigma(t)
    torch.testing.assert_close(path.wronskian(t), expected, rtol=1e-12, atol=0)
    assert (path.wronskian(moving(path, t)) > 0).all()
    assert len(moving(path, t)) > 480


@each_path
def test_log_snr_and_its_derivative_are_their_definitions(path):
    t = grid()
    torch.testing.assert_close(
        path.log_snr(t), 2 * (path.alpha(t) / path.sigma(t)).log(), rtol=1e-12, atol=1e-12
    )
    expected = 2 * path.wronskian(t) / (path.alpha(t) * path.sigma(t))
    torch.testing.assert_close(path.d_log_snr(t), expected, rtol=1e-12, atol=0)


@each_path
def test_float64_keeps_its_digits_up_to_the_ends(path):
    for t in (2.0**-60, 1e-9, 1e-3, 0.3, 0.5, 0.9, 1 - 1e-6, 1 - 2.0**-40, 1 - 2.0**-53):
        tensor = torch.tensor(t, dtype=torch.float64)
        with mpmath.workdps(60):
            alpha, sigma, log_snr = truth(path, t)
        # exp(L) turns the rounding of L, up to 50 here, into a relative error.
        assert abs(float(path.alpha(tensor)) / alpha - 1) < 2e-14
        assert abs(float(path.sigma(tensor)) / sigma - 1) < 2e-14
        assert abs(float(path.log_snr(tensor)) - log_snr) < 4e-15 * (10 + abs(log_snr))


@each_path
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_ends_are_exact(path, dtype):
    ends = ENDS.to(dtype)
    values = {name: getattr(path, name)(ends) for name in FUNCTIONS}
    assert not any(value.isnan().any() for value in values.values())
    tiny = 40 * torch.finfo(dtype).eps
    for index, t in enumerate((0, 1)):
        with mpmath.workdps(60):
            expected = dict(zip(("alpha", "sigma", "log_snr"), map(float, truth(path, t)), strict=True))
        for name, value in expected.items():
            got = float(values[name][index])
            # 0, 1 and infinite exactly, also where sigma(0) is 1 but for less than a rounding.
            exact = value in (0, 1) or math.isinf(value)
            assert got == value if exact else got == pytest.approx(value, rel=tiny)
    assert (values["d_sigma"][1] == -math.inf) == infinite_at_data(path)
    assert (values["wronskian"][1] == math.inf) == infinite_at_data(path)
    assert (values["d_alpha"][0] == math.inf) == infinite_at_noise(path)
    assert values["d_alpha"][1].isfinite()
    assert (values["wronskian"][0] == 0) == still_at_noise(path)
    x1, x0 = torch.randn(2, 2, 3, dtype=dtype, generator=torch.Generator().manual_seed(0))
    expected = float(values["alpha"][1]) * x1 + float(values["sigma"][1]) * x0
    assert torch.equal(path.mix(x1, x0, torch.ones(2, dtype=dtype)), expected)


@each_path
def test_derivatives_at_the_ends_are_the_limits(path):
    near = torch.tensor([2.0**-60, 1 - 2.0**-53], dtype=torch.float64)
    for name in ("d_alpha", "d_sigma", "wronskian", "d_log_snr"):
        at, limit = getattr(path, name)(ENDS), getattr(path, name)(near)
        finite = at.isfinite()
        torch.testing.assert_close(at[finite], limit[finite], rtol=2e-6, atol=2e-8)
        assert (limit[~finite].abs() > 1e5).all()


@each_path
def test_log_snr_rises_strictly(path):
    ends = torch.logspace(-12, -3, 50, dtype=torch.float64)
    t = torch.cat([ends, grid(200), 1 - ends]).unique()
    assert (path.log_snr(t).diff() >= 0).all()
    assert (path.log_snr(moving(path, t)).diff() > 0).all()


@each_path
def test_log_snr_to_time_and_back(path):
    reached = path.log_snr(ENDS)
    log_snr = torch.linspace(-14, 14, 561, dtype=torch.float64)
    log_snr = log_snr[(log_snr > reached[0]) & (log_snr < reached[1])]
    assert len(log_snr) > 250
    t = path.time(log_snr)
    # A unit in the last place of t (or of 1 - t < 1) moves the log-SNR by its derivative times that.
    rounding = 8e-16 * (4 + path.d_log_snr(t) * t.abs().clamp_min(1))
    assert ((path.log_snr(t) - log_snr).abs() <= rounding).all()


@each_path
def test_time_to_log_snr_and_back(path):
    value = moving(path, torch.linspace(-20, 20, 4001, dtype=torch.float64).sigmoid())
    back = path.time(path.log_snr(value))
    # The log-SNR is rounded at 2e-15 of its size, which moves t by that over the derivative.
    slack = 2e-15 * (2 + path.log_snr(value).abs()) / path.d_log_snr(value) + 8e-16
    assert ((back - value).abs() <= slack).all()


@each_path
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_time_of_a_log_snr_that_is_not_reached(path, dtype):
    log_snr = torch.tensor([-math.inf, -2000.0, -100.0, 2000.0, math.inf], dtype=dtype)
    t = path.time(log_snr)
    assert not t.isnan().any()
    reached = path.log_snr(ENDS)
    if reached[0] == -math.inf:
        assert (t[:2] >= 0).all()
        assert (t[:2] < 1e-30).all()
    elif path.name.startswith("chen"):
        # They give the time at which gamma would have been so small, were it not cut.
        assert (t[:2] > -2 * torch.finfo(dtype).eps).all()
        assert (t[:2] <= path.time(reached[0])).all()
    else:
        assert (t[:2] < 0).all()
    assert (t[3:] == 1).all() if reached[1] == math.inf else (t[3:] > 1).all()
    assert (t.diff() >= 0).all()


@each_path
def test_float32_is_near_float64(path):
    t = grid(200).float()
    for name in ("alpha", "sigma", "log_snr"):
        single, double = getattr(path, name)(t), getattr(path, name)(t.double())
        torch.testing.assert_close(single.double(), double, rtol=1e-5, atol=1e-5)


@each_path
def test_dtype_is_kept_but_never_below_float32(path):
    for given in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        t = torch.full((2, 3), 0.5, dtype=given)
        results = [getattr(path, name)(t) for name in (*FUNCTIONS, "time")]
        for result in (*results, *path.velocity_to_data(t), *path.velocity_to_noise(t)):
            assert result.dtype == torch.promote_types(given, torch.float32)
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
def test_wrong_shapes_never_broadcast(path, method):
    for first, second, times in (
        ((4, 3), (4, 3), (4, 1)),
        ((4, 3), (4, 3), (1,)),
        ((4, 3), (4, 1), (4,)),
        ((4, 4), (4, 4), ()),
    ):
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
    t = moving(path, grid(33))
    x1, x0 = torch.randn(2, len(t), dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    x_t, u = path.mix(x1, x0, t), path.velocity(x1, x0, t)
    for coefficients, expected in ((path.velocity_to_data(t), x1), (path.velocity_to_noise(t), x0)):
        torch.testing.assert_close(
            coefficients[0] * u + coefficients[1] * x_t, expected, rtol=1e-9, atol=1e-9
        )
    for pair in (path.velocity_to_data(ENDS), path.velocity_to_noise(ENDS)):
        assert all(value[1].isfinite() for value in pair)
        assert not any(value.isnan().any() for value in pair)
        assert still_at_noise(path) or all(value.isfinite().all() for value in pair)
    if still_at_noise(path):
        assert path.velocity_to_data(ENDS)[0][0] == math.inf
