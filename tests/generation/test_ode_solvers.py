import numpy as np
import pytest
import torch

from flowtempo.errors import UserError
from flowtempo.generation import Solver
from flowtempo.interpolants import Linear, Trigonometric


def velocity(interpolant, s):
    """d/dt of sqrt(alpha^2 s^2 + sigma^2), over itself: the exact flow of data N(0, s^2) scales by it."""

    def field(x, t):
        alpha, sigma = interpolant.alpha(t), interpolant.sigma(t)
        half = alpha * interpolant.d_alpha(t) * s**2 + sigma * interpolant.d_sigma(t)
        return (half / (alpha**2 * s**2 + sigma**2))[:, None] * x

    return field


@pytest.mark.parametrize("interpolant", [Linear(), Trigonometric()], ids=lambda i: i.name)
@pytest.mark.parametrize(("name", "order"), [("euler", 1), ("heun", 2)])
def test_order_of_convergence(name, order, interpolant):
    x = torch.linspace(-2, 2, 5, dtype=torch.float64)[:, None]
    counts = [32, 64, 128, 256]
    errors = [
        float((Solver(name, n).solve(velocity(interpolant, 0.3), x, 0.0, 1.0).x - 0.3 * x).abs().max())
        for n in counts
    ]
    slope = np.polyfit(np.log(counts), np.log(errors), 1)[0]
    assert slope == pytest.approx(-order, abs=0.1)
    assert errors[-1] < {1: 0.02, 2: 2e-4}[order]


@pytest.mark.parametrize(("name", "per_step"), [("euler", 1), ("heun", 2)])
def test_n_steps_are_n_intervals_from_end_to_end(name, per_step):
    seen = []

    def field(x, t):
        assert t.shape == x.shape[:1]
        assert t.dtype == x.dtype
        seen.append(float(t[0]))
        return torch.ones_like(x)

    solution = Solver(name, 5).solve(field, torch.zeros(3, 2), 0.0, 1.0)
    assert solution.nfe == len(seen) == 5 * per_step
    torch.testing.assert_close(solution.x, torch.ones(3, 2))
    lefts = [0.0, 0.2, 0.4, 0.6, 0.8]
    expected = lefts if per_step == 1 else [t for left in lefts for t in (left, left + 0.2)]
    assert seen == pytest.approx(expected)


def test_dopri5_keeps_its_tolerance():
    x = torch.linspace(-2, 2, 5, dtype=torch.float64)[:, None]
    rough = Solver("dopri5", atol=1e-4, rtol=1e-4).solve(velocity(Linear(), 0.3), x, 0.0, 1.0)
    fine = Solver("dopri5", atol=1e-9, rtol=1e-9).solve(velocity(Linear(), 0.3), x, 0.0, 1.0)
    rough_error, fine_error = ((solution.x - 0.3 * x).abs().max() for solution in (rough, fine))
    assert rough_error < 1e-3
    assert fine_error < 1e-7
    assert rough.nfe < fine.nfe


def test_dopri5_stays_inside_the_interval():
    def field(x, t):
        assert float(t.min()) >= 0
        assert float(t.max()) <= 1
        return velocity(Linear(), 0.5)(x, t)

    Solver("dopri5").solve(field, torch.ones(2, 1, dtype=torch.float64), 0.0, 1.0)


def test_dopri5_counts_evaluations_and_reports_failure():
    calls = 0

    def field(x, t):
        nonlocal calls
        calls += 1
        return torch.full_like(x, float("nan")) if calls > 20 else x * torch.cos(200 * t)[:, None]

    good = Solver("dopri5").solve(velocity(Linear(), 0.5), torch.ones(2, 1), 0.0, 1.0)
    assert good.nfe > 6
    with pytest.raises(UserError, match="dopri5 cannot go on after"):
        Solver("dopri5", atol=1e-9, rtol=1e-9).solve(field, torch.ones(2, 1), 0.0, 1.0)


def test_defaults_are_resolved():
    assert Solver() == Solver("heun", 50)
    assert Solver("dopri5") == Solver("dopri5", None, 1e-6, 1e-3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "rk4"}, "unknown solver 'rk4'; known solvers: euler, heun, dopri5"),
        ({"name": "euler", "atol": 1e-3}, "no effect on euler"),
        ({"name": "heun", "rtol": 1e-3}, "no effect on heun"),
        ({"name": "dopri5", "steps": 10}, "leave steps out"),
        ({"steps": 0}, "steps is 0"),
        ({"name": "dopri5", "rtol": -1.0}, "rtol is -1.0"),
    ],
)
def test_options_without_effect_and_out_of_range_raise(arguments, message):
    with pytest.raises(UserError, match=message):
        Solver(**arguments)
