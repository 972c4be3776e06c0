import copy
import math

import pytest
import torch
from torch import nn

from flowtempo.densities import LogitNormal, Mixture, Uniform
from flowtempo.interpolants import Linear
from flowtempo.models import ModelConfig, build
from flowtempo.objectives import Objective
from flowtempo.runtime import Runtime
from flowtempo.timesteps import Proposal
from flowtempo.training import OptimizerConfig, TrainConfig
from flowtempo.training.batches import Batch
from flowtempo.training.ema import EMA
from flowtempo.training.optimizer import build_optimizer
from flowtempo.training.step import TrainStep

SHAPE = (2, 8, 8)


def make(model, *, batch_size, objective=None, **changes):
    config = TrainConfig(batch_size=batch_size, **{"optimizer": OptimizerConfig(lr=1e-2)} | changes)
    objective = objective or Objective(Linear())
    optimizer = build_optimizer(config.optimizer, model)
    return TrainStep(model, optimizer, EMA(model, 0.9), objective, config, Runtime())


def sit():
    return build(ModelConfig(size="micro/4"), SHAPE, 0, seed=1)


def batch(seed=0, count=4):
    generator = torch.Generator().manual_seed(seed)
    x1, x0 = torch.randn(2, count, *SHAPE, generator=generator).unbind()
    t, weight = torch.rand(2, count, generator=generator).unbind()
    return Batch(x1, x0, None, t, weight + 0.5)


def weights(model):
    return [p.detach().clone() for p in model.parameters()]


def same(one, two):
    return all(torch.equal(a, b) for a, b in zip(one, two, strict=True))


def test_logged_loss_is_the_one_that_is_optimised():
    model, b = sit(), batch()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.1)
    objective = Objective(Linear(), direction=0.5)
    step = make(model, batch_size=4, objective=objective)
    losses = objective.loss(model(Linear().mix(b.x1, b.x0, b.t), b.t), b.x1, b.x0, b.t)
    optimised = (losses.total * b.weight).sum() / 4
    gradient = torch.autograd.grad(optimised, model.final_layer.linear.weight)[0]
    step(b, 0)
    torch.testing.assert_close(model.final_layer.linear.weight.grad, gradient)
    read = step.meters.read()
    assert read["loss"] == pytest.approx(float(optimised.detach()), rel=1e-5)
    assert read["unweighted"] == pytest.approx(float(losses.total.detach().mean()), rel=1e-5)
    assert read["unweighted"] == pytest.approx(read["mse"] + 0.5 * read["direction"], rel=1e-5)
    norm = torch.stack([p.grad.norm() for p in model.parameters()]).norm()
    assert read["grad_norm"] == pytest.approx(float(norm), rel=1e-5)


def test_accumulated_parts_are_one_batch():
    whole, parts = sit(), sit()
    one, four = make(whole, batch_size=4), make(parts, batch_size=4, accumulate=4)
    for k in range(3):
        one(batch(k), k)
        four(batch(k), k)
    for a, b in zip(weights(whole), weights(parts), strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-4)
    assert one.meters.read()["loss"] == pytest.approx(four.meters.read()["loss"], rel=1e-4)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_step_that_is_not_finite_changes_nothing_and_is_counted(bad):
    model, clean = sit(), sit()
    step, other = make(model, batch_size=4), make(clean, batch_size=4)
    for each in (step, other):
        each(batch(0), 0)
    step.meters.read()
    before, moments = weights(model), copy.deepcopy(step.optimizer.state_dict()["state"])
    poisoned = batch(1)
    poisoned.x1[1, 0, 0, 0] = bad
    step(poisoned, 1)
    assert same(before, weights(model))
    after = step.optimizer.state_dict()["state"]
    assert all(same(moments[k].values(), after[k].values()) for k in moments)
    assert all(torch.isfinite(p).all() for p in step.ema.model.parameters())
    # The next good step is what it would have been without the bad one.
    for each in (step, other):
        each(batch(2), 1)
    assert same(weights(model), weights(clean))
    read = step.meters.read()
    assert read["skipped"] == 1
    assert math.isfinite(read["loss"])
    assert step.meters.read() == {**dict.fromkeys(step.meters.names), "skipped": 1}


def test_clipping_bounds_the_norm_and_logs_the_one_before():
    model = sit()
    step = make(model, batch_size=4, optimizer=OptimizerConfig(lr=1e-2, clip_norm=1e-3))
    step(batch(), 0)
    norm = torch.stack([p.grad.norm() for p in model.parameters()]).norm()
    assert float(norm) == pytest.approx(1e-3, rel=1e-2)
    assert step.meters.read()["grad_norm"] > 0.01


def test_learning_rate_is_set_each_step():
    step = make(sit(), batch_size=4, optimizer=OptimizerConfig(lr=1e-2, warmup_steps=4))
    assert [step(batch(k), k) for k in range(5)] == [0.0025, 0.005, 0.0075, 0.01, 0.01]
    assert step.optimizer.param_groups[0]["lr"] == 0.01


def test_bf16_trains_float32_weights():
    model = sit()
    step = make(model, batch_size=4, precision="bf16")
    seen = []
    model.blocks[0].mlp.fc1.register_forward_hook(lambda m, i, output: seen.append(output.dtype))
    losses = []
    for k in range(8):
        step(batch(), k)
        losses.append(step.meters.read()["loss"])
    assert set(seen) == {torch.bfloat16}
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert losses[-1] < 0.95 * losses[0]


class OptimalForUnitGaussian(nn.Module):
    """E[u | x_t] for data N(0, 1) on the linear path; the parameter is there for the optimizer only."""

    def __init__(self):
        super().__init__()
        self.unused = nn.Parameter(torch.zeros(()))

    def forward(self, x, t, y=None):
        gain = (2 * t - 1) / (t**2 + (1 - t) ** 2)
        return gain[:, None, None, None] * x + 0 * self.unused


@pytest.mark.parametrize(
    ("proposal", "loss", "unweighted"),
    [
        (Proposal(Uniform(), None, "stratified"), math.pi / 2, math.pi / 2),
        (Proposal(LogitNormal(0.0, 1.0), None, "stratified"), 1.7413, 1.7413),
        # Drawn elsewhere with weights: the same objective as the first.
        (Proposal(Uniform(), Mixture(LogitNormal(0.0, 1.0), 0.2), "stratified"), math.pi / 2, None),
    ],
    ids=["uniform", "logit-normal target", "logit-normal proposal"],
)
def test_loss_is_the_target_densitys_mean(proposal, loss, unweighted):
    count = 4096
    generator = torch.Generator().manual_seed(0)
    x1, x0 = torch.randn(2, count, *SHAPE, generator=generator).unbind()
    times = proposal.draw(count, step=0, seed=0)
    step = make(OptimalForUnitGaussian(), batch_size=count)
    step(Batch(x1, x0, None, times.t, times.weight), 0)
    read = step.meters.read()
    assert read["loss"] == pytest.approx(loss, abs=0.01)
    if unweighted is None:
        assert read["unweighted"] > loss + 0.05
    else:
        assert read["unweighted"] == pytest.approx(unweighted, abs=0.01)
