"""What `flowtempo inspect` takes: densities, run folders and recipes, each with its objective."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from flowtempo.cli.parsing import config_from_recipes
from flowtempo.data import whole_std
from flowtempo.densities import DENSITIES, Density, Tabulated, parse
from flowtempo.design import Design
from flowtempo.design.snr import SnrPdf
from flowtempo.errors import UserError
from flowtempo.files import read_json
from flowtempo.interpolants import interpolant as interpolant_named
from flowtempo.objectives import weighting as weighting_named
from flowtempo.predictions import Prediction
from flowtempo.recipes import names
from flowtempo.training import TrainConfig, checkpoint, load_config
from flowtempo.training.run import CHECKPOINTS, CONFIG

# What may follow WHAT: an interpolant's text form, a standard deviation, or both.
_SUFFIX = re.compile(r"(.+?)(?:@([A-Za-z]\w*(?:\([^'\"@]*\))?))?(?:@([0-9.eE+-]+))?")


@dataclass(frozen=True)
class Subject:
    """One of the things to inspect.

    Attributes:
        name: As it was typed.
        snr: What it says.
        said: Where its standard deviation is from.
        varies: What draws in place of the density, if that changes during training.
    """

    name: str
    snr: SnrPdf
    said: str
    varies: str | None = None


@dataclass(frozen=True)
class Asked:
    """The options that hold for every WHAT; None where nothing is asked for."""

    interpolant: str | None = None
    prediction: Prediction | None = None
    weighting: str | None = None
    std: float | None = None

    def check_effect(self, what: Sequence[str]) -> None:
        """Refuse an option that every WHAT overrides.

        Raises:
            UserError: Names it.
        """
        own = [_split(word) for word in what]
        for name, value, given in (
            ("--interpolant", self.interpolant, [path for _, path, _ in own]),
            ("--std", self.std, [std for _, _, std in own]),
        ):
            if value is not None and all(item is not None for item in given):
                raise UserError(
                    f"{name} {value} has no effect: each WHAT has its own behind an @; leave it out"
                )


@dataclass(frozen=True)
class _Source:
    """What a file or text says; None where it says nothing."""

    density: Density
    target: Density | None = None
    interpolant: str | None = None
    prediction: Prediction | None = None
    weighting: str | None = None
    std: float | None = None
    said: str = ""
    varies: str | None = None


def read_subject(word: str, asked: Asked, measured: float | None) -> Subject:
    """Read a WHAT.

    Args:
        word: As it was typed.
        asked: The options. What stands behind an @ comes before them, and they before what a file says.
        measured: Standard deviation of measured data, for those that say none.

    Raises:
        UserError: It is nothing that is known, or a part of it is wrong.
    """
    base, own_path, own_std = _split(word)
    source = _read(base)
    path = own_path or asked.interpolant or source.interpolant or "linear"
    prediction = asked.prediction or source.prediction or "velocity"
    weighting = asked.weighting or source.weighting
    stds = (
        (own_std, "as given"),
        (asked.std, "as given"),
        (source.std, source.said),
        (measured, "of the measured data"),
    )
    std, said = next(((std, said) for std, said in stds if std is not None), (1.0, "assumed"))
    try:
        snr = SnrPdf(
            source.density,
            interpolant_named(path),
            std,
            prediction,
            None if weighting is None else weighting_named(weighting),
            source.target,
        )
    except UserError as error:
        raise UserError(f"{word}: {error}") from error
    return Subject(word, snr, said, source.varies)


def is_there(word: str) -> bool:
    """Whether a file or folder has this name; a long density cannot be one."""
    try:
        return Path(word).exists()
    except OSError:
        return False


def _split(word: str) -> tuple[str, str | None, float | None]:
    if is_there(word):
        return word, None, None
    match = _SUFFIX.fullmatch(word)
    if match is None:
        return word, None, None
    base, path, std = match.groups()
    try:
        return base, path, None if std is None else float(std)
    except ValueError as error:
        raise UserError(f"{word}: {std!r} behind the @ is no number") from error


def _read(base: str) -> _Source:
    # A density's name comes first: a folder of that name is ./uniform.
    if base.partition("(")[0].strip() in DENSITIES:
        return _Source(parse(base))
    if is_there(base) and Path(base).is_dir():
        return _of_run(Path(base))
    if base.endswith(".json"):
        return _of_density_file(base)
    if base in names() or base.endswith((".yaml", ".yml")):
        return _of_config(config_from_recipes([base]))
    if "(" in base:
        return _Source(parse(base))
    raise UserError(
        f"{base}: neither a file nor a run folder, nor a recipe (`flowtempo recipes` lists them), nor a "
        f"density: {', '.join(DENSITIES)}"
    )


def _of_density_file(path: str) -> _Source:
    content = read_json(path)
    if not isinstance(content, dict) or content.get("kind") != "density":
        return _Source(Tabulated.load(path))
    design = Design.load(path)
    target = None if design.moves_objective else design.target
    return _Source(design.density, target, design.interpolant, design.prediction)


def _of_run(folder: Path) -> _Source:
    config = load_config(folder / CONFIG)
    source = _of_config(config)
    if not checkpoint.steps(folder / CHECKPOINTS):
        return source
    data = checkpoint.find(folder / CHECKPOINTS).state["data"]
    return replace(source, std=measured_std(data, str(folder)), said="of the run's data")


def _of_config(config: TrainConfig) -> _Source:
    times, objective = config.timesteps, config.objective
    times.build(config.steps)  # tells what is wrong with them
    target = parse(times.target)
    return _Source(
        target if times.density is None else parse(times.density),
        None if times.density is None else target,
        objective.interpolant,
        objective.prediction,
        objective.weighting,
        config.data.target_std,
        "data.target_std",
        times.adaptive or times.curriculum,
    )


def measured_std(data: Mapping[str, Any], where: str) -> float | None:
    """One standard deviation of all channels from a record of the data; None if it holds none.

    Raises:
        UserError: The record is damaged; `where` names it.
    """
    channels = data.get("channel_std")
    if channels is None:
        return None
    try:
        return whole_std([float(value) for value in channels])
    except (TypeError, ValueError) as error:
        raise UserError(f"{where}: the record of the data is damaged: channel_std is {channels!r}") from error
