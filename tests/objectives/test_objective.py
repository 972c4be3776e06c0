import math

import pytest
import torch

from flowtempo.errors import UserError
from flowtempo.interpolants import STANDARD, Linear, VariancePreserving
from flowtempo.objectives import Objective, weighting
from flowtempo.predictions import PREDICTIONS, target

PATHS = STANDARD


def batch(count: int = 5):
    x1, x0 = torch.randn(2, count, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    return x1, x0, torch.linspace(0.1, 0.9, count)


@pytest.mark.parametrize("path", PATHS, ids=str)
@pytest.mark.parametrize("prediction", PREDICTIONS)
def test_the_target_itself_has_no_loss(path, prediction):
    x1, x0, t = batch()
    losses = Objective(path, prediction).loss(target(prediction, x1, x0, t, path), x1, x0, t)
    assert losses.total.shape == (5,)
    torch.testing.assert_close(losses.total, torch.zeros(5), rtol=0, atol=1e-11)


def test_the_total_is_what_is_logged():
    x1, x0, t = batch()
    output = torch.randn(x1.shape, generator=torch.Generator().manual_seed(1)).requires_grad_()
    losses = Objective(Linear(), direction=0.5).loss(output, x1, x0, t)
    assert set(losses.terms) == {"mse", "direction"}
    torch.testing.assert_close(losses.total, losses.terms["mse"] + 0.5 * losses.terms["direction"])
    losses.total.mean().backward()
    assert output.grad is not None
    plain = Objective(Linear()).loss(output, x1, x0, t)
    assert set(plain.terms) == {"mse"}
    assert torch.equal(plain.total, plain.terms["mse"])


def test_opposite_and_doubled_velocities():
    x1, x0, t = batch()
    v = Linear().velocity(x1, x0, t)
    opposite = Objective(Linear(), direction=1.0).loss(-v, x1, x0, t)
    torch.testing.assert_close(opposite.terms["direction"], torch.full((5,), 2.0))
    doubled = Objective(Linear(), direction=1.0).loss(2 * v, x1, x0, t)
    torch.testing.assert_close(doubled.terms["direction"], torch.zeros(5), rtol=0, atol=1e-6)
    torch.testing.assert_close(doubled.terms["mse"], v.square().mean((1, 2, 3)))


@pytest.mark.parametrize(
    ("s", "expected"),
    [(0.5, {0: 1, 0.2: 1.25, 0.5: 0.8, 1: 0.25}), (1.0, {0.5: 2}), (2.0, {0.5: 3.2, 0.8: 5, 1: 4})],
)
def test_optimal_velocity_on_gaussian_data(s, expected):
    # x1 ~ N(0, s^2): the best loss is s^2 / ((1 - tau)^2 s^2 + tau^2) at noise level tau = 1 - t.
    random = torch.Generator().manual_seed(0)
    x1, x0 = torch.randn(2, 1, 400_000, 1, generator=random, dtype=torch.float64)
    x1 = s * x1
    for tau, value in expected.items():
        t = torch.tensor([1 - tau], dtype=torch.float64)
        x_t = Linear().mix(x1, x0, t)
        optimal = ((1 - tau) * s**2 - tau) / ((1 - tau) ** 2 * s**2 + tau**2) * x_t
        loss = Objective(Linear()).loss(optimal, x1, x0, t).total
        assert float(loss) == pytest.approx(value, rel=5 * (2 / 400_000) ** 0.5)


def test_score_is_compared_as_sigma_times_score():
    x1, x0, _ = batch(2)
    output = torch.randn(x1.shape, generator=torch.Generator().manual_seed(1))
    path = VariancePreserving()
    t = torch.tensor([0.5, 1.0])
    sigma = path.sigma(t)[:, None, None, None]
    losses = Objective(path, "score").loss(output, x1, x0, t)
    torch.testing.assert_close(losses.total, (sigma * output + x0).square().mean((1, 2, 3)))
    assert losses.total.isfinite().all()


@pytest.mark.parametrize("prediction", PREDICTIONS)
def test_wrong_shapes_never_broadcast(prediction):
    x1, x0, t = batch()
    objective = Objective(Linear(), prediction)
    for output, data, noise, times in [
        (x1[:, :1], x1, x0, t),
        (x1, x1[:1], x0, t),
        (x1, x1, x0[:1], t),
        (x1, x1, x0, t[:1]),
        (x1, x1, x0, t[:, None, None, None]),
    ]:
        with pytest.raises(ValueError, match="shape"):
            objective.loss(output, data, noise, times)


def test_half_precision_output_gives_a_float32_loss():
    x1, x0, t = batch()
    zero = torch.zeros(x1.shape, dtype=torch.float16)
    losses = Objective(Linear(), direction=1.0).loss(zero, x1, x0, t)
    assert losses.total.dtype == torch.float32
    assert losses.total.isfinite().all()


def test_bad_objectives_raise():
    with pytest.raises(UserError, match="unknown prediction 'eps'"):
        Objective(Linear(), "eps")
    for coefficient in (-1.0, math.inf, math.nan):
        with pytest.raises(UserError, match="direction = "):
            Objective(Linear(), direction=coefficient)
    with pytest.raises(UserError, match="no effect on prediction 'noise'"):
        Objective(Linear(), "noise", direction=1.0)


def test_a_weighting_multiplies_the_whole_sum_and_leaves_the_terms():
    x1, x0, t = batch()
    output = torch.randn(x1.shape, generator=torch.Generator().manual_seed(3))
    plain = Objective(Linear(), direction=0.5).loss(output, x1, x0, t)
    losses = Objective(Linear(), direction=0.5, weighting=weighting("cosmap")).loss(output, x1, x0, t)
    weight = weighting("cosmap").weight("velocity", Linear(), t).float()
    torch.testing.assert_close(losses.total, weight * plain.total)
    assert losses.terms.keys() == {"mse", "direction"}
    assert torch.equal(losses.terms["mse"], plain.terms["mse"])
