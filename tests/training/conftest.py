import dataclasses

import numpy as np
import pytest

from flowtempo.data import DataConfig
from flowtempo.models import ModelConfig
from flowtempo.training import OptimizerConfig, TimestepConfig, TrainConfig


@pytest.fixture(scope="session")
def images_file(tmp_path_factory):
    """Fifty 8x8 images of three classes."""
    random = np.random.default_rng(0)
    path = tmp_path_factory.mktemp("data") / "images.npz"
    images = random.integers(0, 256, (50, 1, 8, 8), dtype=np.uint8)
    np.savez(path, images=images, labels=np.arange(50) % 3)
    return path


@pytest.fixture(scope="session")
def make_config(images_file):
    """A quick run that uses everything: accumulation, weights, stratified draws, dropped labels, warm-up."""

    def make(**changes):
        base = TrainConfig(
            data=DataConfig(kind="array", path=str(images_file)),
            model=ModelConfig(size="micro/4"),
            timesteps=TimestepConfig("uniform", "mixture(logit_normal(-0.75, 1), 0.2)", "stratified"),
            optimizer=OptimizerConfig(lr=1e-3, warmup_steps=3, clip_norm=1.0),
            steps=10,
            batch_size=8,
            accumulate=2,
            label_dropout=0.3,
            log_every=4,
            reference_every=5,
            reference_count=16,
            checkpoint_every=100,
        )
        return dataclasses.replace(base, **changes)

    return make
