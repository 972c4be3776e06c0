import pytest
import torch
from torch import nn

from flowtempo.training.ema import EMA, ema_decay, initial_weight


class Scalar(nn.Module):
    def __init__(self, value):
        super().__init__()
        self.value = nn.Parameter(torch.tensor(value, dtype=torch.float64))
        self.register_buffer("count", torch.tensor(0))


def set_to(module, value):
    with torch.no_grad():
        module.value.fill_(value)


def test_warm_up():
    assert ema_decay(0, 0.9999) == 0.1
    assert ema_decay(100, 0.9999) == pytest.approx(0.9182, abs=1e-4)
    assert ema_decay(10**6, 0.9999) == 0.9999
    assert ema_decay(100, 0.5) == 0.5


@pytest.mark.parametrize("limit", [0.0, 0.9, 0.9999])
def test_average_of_a_jump_forgets_the_initial_weight(limit):
    model = Scalar(0.0)
    ema = EMA(model, limit)
    set_to(model, 1.0)
    for step in range(30):
        ema.update(step)
        assert float(ema.model.value) == pytest.approx(1 - initial_weight(step + 1, limit))
    assert initial_weight(30, limit) < 1e-6


def test_average_is_the_recursion():
    model, expected = Scalar(2.0), 2.0
    ema = EMA(model, 0.7)
    for step, value in enumerate([1.0, 5.0, -3.0, 4.0]):
        set_to(model, value)
        ema.update(step)
        decay = min(0.7, (1 + step) / (10 + step))
        expected = decay * expected + (1 - decay) * value
    assert float(ema.model.value) == pytest.approx(expected)
    assert float(model.value.detach()) == 4.0


def test_buffers_are_copied_and_the_average_needs_no_gradient():
    model = Scalar(0.0)
    ema = EMA(model, 0.9)
    model.count.fill_(7)
    ema.update(0)
    assert int(ema.model.count) == 7
    assert not ema.model.value.requires_grad
    assert not ema.model.training
    assert model.training
