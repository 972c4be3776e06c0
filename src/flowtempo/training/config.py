"""The typed configuration of a training run, as YAML files and the command line spell it."""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml
from jsonargparse import ArgumentParser, Namespace

from flowtempo.data import DataConfig
from flowtempo.errors import UserError
from flowtempo.files import atomic_write
from flowtempo.interpolants import Shifted
from flowtempo.models import ModelConfig
from flowtempo.timesteps import AdaptiveProposal
from flowtempo.training.sections import ObjectiveConfig, OptimizerConfig, TimestepConfig


@dataclass(frozen=True)
class TrainConfig:
    """A training run.

    Args:
        data: The images.
        model: The network.
        objective: The loss at one time t.
        timesteps: Where t is drawn.
        optimizer: AdamW and its learning rate.
        reference_data: Images of the reference loss; null takes a fixed subset of the training images.
        steps: Optimizer steps.
        batch_size: Images per optimizer step, over all processes and accumulated parts together.
        accumulate: Parts that a process cuts its share of the batch into, to save memory.
        seed: Seed of the initial weights and of every draw.
        label_dropout: Probability that a label is replaced by the null label, for classifier-free
            guidance; null means 0.1 for labelled data.
        ema_decay: Decay of the averaged weights, reached through min(decay, (1 + k) / (10 + k)) at step k.
        precision: fp32, or bf16 autocast (weights, averages, times and losses stay float32).
        log_every: Steps between lines of metrics.jsonl.
        reference_every: Steps between reference losses.
        reference_count: Images of the reference loss; each is used once in each of 10 bands of t.
        probe_every: Steps between probes of the last weights (RUN/probes), which show where on the noise axis
            their gradients and losses are large; null does not probe.
        probe_images: Images of a probe, of reference_data if that is given; all of them if there are fewer.
        checkpoint_every: Steps between checkpoints.
        keep_checkpoints: Keep only this many of the newest checkpoints; null keeps all.
        compile: Compile the network with torch.compile; null does so on CUDA only.
    """

    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    objective: ObjectiveConfig = field(default_factory=ObjectiveConfig)
    timesteps: TimestepConfig = field(default_factory=TimestepConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    reference_data: DataConfig | None = None
    steps: int = 1000
    batch_size: int = 128
    accumulate: int = 1
    seed: int = 0
    label_dropout: float | None = None
    ema_decay: float = 0.9999
    precision: Literal["fp32", "bf16"] = "fp32"
    log_every: int = 50
    reference_every: int = 500
    reference_count: int = 256
    probe_every: int | None = None
    probe_images: int = 64
    checkpoint_every: int = 500
    keep_checkpoints: int | None = None
    compile: bool | None = None


# What may differ when a run is resumed: none of these changes the weights of any step.
_FREE_KEYS = frozenset(
    {
        "steps",
        "log_every",
        "reference_every",
        "probe_every",
        "probe_images",
        "checkpoint_every",
        "keep_checkpoints",
        "compile",
    }
)

# A batch beyond this is a slip of the keyboard, whose draws alone would fill the memory.
_MOST_IMAGES = 2**24

_SECTIONS = frozenset({"data", "model", "objective", "timesteps", "optimizer", "reference_data"})


def check(config: TrainConfig) -> None:
    """Check what the types cannot say.

    Raises:
        UserError: Names the key, its value and the range.
    """
    positive = ("steps", "batch_size", "accumulate", "log_every", "reference_every", "reference_count")
    for key in (*positive, "probe_every", "probe_images", "checkpoint_every", "keep_checkpoints"):
        value = getattr(config, key)
        if value is not None and value < 1:
            raise UserError(f"{key} is {value}: it must be at least 1")
    if config.probe_every is None and config.probe_images != TrainConfig.probe_images:
        raise UserError(
            f"probe_images is {config.probe_images}, which has no effect without probe_every: set that, or "
            "leave it out"
        )
    built = config.timesteps.build(config.steps)
    by_probes = isinstance(built, AdaptiveProposal) and built.adaptation.quantity == "gradient"
    if by_probes and config.probe_every is None:
        raise UserError(
            f"timesteps.adaptive {config.timesteps.adaptive} is told by the probes of training: set "
            "probe_every"
        )
    path, drawn = config.objective.build().interpolant, built.describe()
    if isinstance(path, Shifted) and any("shifted(" in drawn[key] for key in ("target", "density")):
        raise UserError(
            f"the interpolant {path} and the density {drawn['density']} are both shifted: a shift is applied "
            "once, so leave one out"
        )
    if config.objective.build_multi_sample() and config.objective.build_coupling():
        raise UserError(
            "objective.multi_sample and objective.coupling exclude each other: the average over images holds "
            "for noise that is independent of them"
        )
    if config.batch_size > _MOST_IMAGES:
        raise UserError(f"batch_size is {config.batch_size}: it must be at most {_MOST_IMAGES}")
    if config.seed < 0:
        raise UserError(f"seed is {config.seed}: it must not be negative")
    if config.seed >= 2**64:
        raise UserError(f"seed is {config.seed}: it must be below 2**64")
    dropout, decay, optimizer = config.label_dropout, config.ema_decay, config.optimizer
    if dropout is not None and not 0 <= dropout <= 1:
        raise UserError(f"label_dropout is {dropout}: it must be a probability, 0 to 1")
    if not 0 <= decay < 1:
        raise UserError(f"ema_decay is {decay}: it must be at least 0 and less than 1")
    if not (optimizer.lr > 0 and math.isfinite(optimizer.lr)):
        raise UserError(f"optimizer.lr is {optimizer.lr}: it must be positive")
    if not all(0 <= beta < 1 for beta in optimizer.betas):
        raise UserError(f"optimizer.betas is {list(optimizer.betas)}: both must be in [0, 1)")
    if not (optimizer.weight_decay >= 0 and math.isfinite(optimizer.weight_decay)):
        raise UserError(f"optimizer.weight_decay is {optimizer.weight_decay}: it must not be negative")
    if optimizer.warmup_steps < 0:
        raise UserError(f"optimizer.warmup_steps is {optimizer.warmup_steps}: it must not be negative")
    if optimizer.clip_norm is not None and not optimizer.clip_norm > 0:
        raise UserError(f"optimizer.clip_norm is {optimizer.clip_norm}: it must be positive, or null")


def to_dict(config: TrainConfig) -> dict[str, Any]:
    """The configuration as plain mappings, lists and scalars."""
    plain: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(config)))
    return plain


def save_config(config: TrainConfig, path: Path) -> None:
    """Write the configuration as YAML."""
    with atomic_write(path) as file:
        yaml.safe_dump(to_dict(config), file, sort_keys=False)


def load_config(path: Path) -> TrainConfig:
    """Read what `save_config` wrote.

    Raises:
        UserError: Not such a file; names it and the key.
    """
    if not path.exists():
        raise UserError(f"{path}: no such file (is {path.parent} a run folder?)")
    content = read_mapping(path)
    if not content:
        raise UserError(f"{path}: expected keys and values, found nothing")
    return from_mapping(content, path)


def read_mapping(path: Path) -> dict[str, Any]:
    """Read a YAML file of keys and values; an empty one has none.

    Raises:
        UserError: Not such a file, or a section that is no section; names the file and the key.
    """
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
        # Refuses what contains itself, which the parser would follow for ever.
        json.dumps(content, default=str)
    except RecursionError as error:
        raise UserError(f"{path}: nested too deeply; write plain keys and values") from error
    except (yaml.YAMLError, ValueError, TypeError) as error:
        raise UserError(f"{path}: not valid YAML: {one_line(error)}") from error
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise UserError(f"{path}: expected keys and values, found {type(content).__name__}")
    for key in _SECTIONS & content.keys():
        if not isinstance(content[key], dict) and not (key == "reference_data" and content[key] is None):
            raise UserError(f"{path}: {key} must be keys and values, found {content[key]!r}")
    return content


def from_mapping(content: dict[str, Any], path: Path) -> TrainConfig:
    """Build the configuration from what a file says and the defaults of what it does not.

    Raises:
        UserError: An unknown key or a wrong value; names the file.
    """
    parser = config_parser()
    try:
        return from_values(parser.instantiate(parser.parse_object(content)))
    except (ValueError, TypeError, KeyError, AttributeError, argparse.ArgumentError) as error:
        raise UserError(f"{path}: {one_line(error)}") from error


def config_parser() -> ArgumentParser:
    """A parser of the configuration's keys and nothing else."""
    parser = ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(TrainConfig, nested_key=None)
    return parser


def from_values(values: Namespace) -> TrainConfig:
    """The configuration among the instantiated values of a parser."""
    return TrainConfig(**{key.name: values[key.name] for key in dataclasses.fields(TrainConfig)})


def one_line(error: Exception) -> str:
    """A parser's message on one line, in a person's words instead of Python's."""
    text = " ".join(str(error).split())
    union = re.fullmatch(
        r"(.*: )Does not validate against any of the Union subtypes .* Given value: (.*)", text
    )
    if union:
        return one_line(ValueError(f"{union[1]}wrong value {union[2]}"))
    for python, plain in (
        ('Parser key "', 'option "'),
        ("typing.Literal", "one of "),
        ("<class 'int'>", "whole number"),
        ("<class 'float'>", "number"),
        ("<class 'str'>", "text"),
    ):
        text = text.replace(python, plain)
    return text


def check_resumable(old: TrainConfig, new: TrainConfig, run_folder: Path) -> None:
    """Check that going on under `new` repeats what an uninterrupted run would have done.

    Raises:
        UserError: Names the keys that differ.
    """
    before, after = _flatten(to_dict(old)), _flatten(to_dict(new))
    changed = [key for key in after if before.get(key) != after[key] and key not in _FREE_KEYS]
    if changed:
        told = ", ".join(f"{key} ({before.get(key)} -> {after[key]})" for key in changed)
        raise UserError(
            f"{run_folder} was started with other settings: {told}; "
            "resume with those of its config.yaml, or start a new run folder"
        )
    course = new.timesteps.curriculum is not None
    if old.steps != new.steps and (course or new.optimizer.lr_schedule == "cosine"):
        depending = "curriculum" if course else "cosine lr_schedule"
        raise UserError(
            f"{run_folder} was started with steps {old.steps}, which its {depending} depends on: "
            "resume with the same steps, or start a new run folder"
        )


def _flatten(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, dict):
            flat |= _flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat
