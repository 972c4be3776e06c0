import pytest

from flowtempo.training import OptimizerConfig
from flowtempo.training.optimizer import learning_rate


def test_constant_after_linear_warm_up():
    config = OptimizerConfig(lr=2.0, warmup_steps=4)
    assert [learning_rate(config, k, 100) for k in range(6)] == [0.5, 1.0, 1.5, 2.0, 2.0, 2.0]
    assert learning_rate(OptimizerConfig(lr=2.0), 0, 100) == 2.0


def test_cosine_falls_from_the_peak_to_nothing():
    config = OptimizerConfig(lr=2.0, warmup_steps=10, lr_schedule="cosine")
    rates = [learning_rate(config, k, 110) for k in range(110)]
    assert rates[9] == rates[10] == 2.0
    assert rates[60] == pytest.approx(1.0)
    assert rates[109] < 0.001
    assert rates[10:] == sorted(rates[10:], reverse=True)
