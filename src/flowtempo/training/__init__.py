"""Training: from a configuration to a run folder, and back to a model."""

from flowtempo.training.config import TrainConfig, load_config, save_config
from flowtempo.training.loop import TrainResult, train
from flowtempo.training.probing import ProbeSet
from flowtempo.training.run import LoadedRun, Track, check_match, load_run
from flowtempo.training.sections import ObjectiveConfig, OptimizerConfig, TimestepConfig

__all__ = [
    "LoadedRun",
    "ObjectiveConfig",
    "OptimizerConfig",
    "ProbeSet",
    "TimestepConfig",
    "Track",
    "TrainConfig",
    "TrainResult",
    "check_match",
    "load_config",
    "load_run",
    "save_config",
    "train",
]
