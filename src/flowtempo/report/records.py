"""What a run left on the disk, read back and checked; nothing here trains, generates or plots."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from flowtempo.errors import UserError

CONFIG = "config.yaml"
METRICS = "metrics.jsonl"


@dataclass(frozen=True)
class Band:
    """The mean reference loss of one interval of t."""

    low: float
    high: float
    loss: float


@dataclass(frozen=True)
class ReferenceLoss:
    """The loss on fixed (t, noise), which does not depend on the density that the run trains with."""

    step: int
    track: str
    loss: float
    bands: tuple[Band, ...]


@dataclass(frozen=True)
class Evaluation:
    """A Frechet distance, the standard error due to the finite number of images, and its card."""

    step: int
    frechet: float
    stderr: float | None
    card: dict[str, Any]
    file: str


@dataclass(frozen=True)
class Run:
    """One arm as its folder tells it.

    Attributes:
        name: The shortest ending of the folder's path that no other arm of the report has.
        config: The resolved config; empty when the folder has none.
        config_text: The same as the file has it.
        steps: The last optimizer step that was logged, None before the first.
        seconds: What `metrics.jsonl` gives as training time at that step.
        reference: By track and step, ascending.
        evaluations: By step, ascending.
        samples: (step, PNG grid), ascending.
        notes: What a reader must know about the files, one sentence each.
    """

    name: str
    folder: Path
    config: dict[str, Any]
    config_text: str
    steps: int | None
    seconds: float | None
    reference: tuple[ReferenceLoss, ...]
    evaluations: tuple[Evaluation, ...]
    samples: tuple[tuple[int, Path], ...]
    notes: tuple[str, ...] = ()

    def setting(self, dotted: str, default: Any = None) -> Any:
        """The value of a config key such as `"timesteps.spacing"`."""
        node: Any = self.config
        for key in dotted.split("."):
            if not isinstance(node, dict) or key not in node:
                return default
            node = node[key]
        return node

    def final_reference(self) -> ReferenceLoss | None:
        """The last reference loss, of the averaged weights where the run has them."""
        for track in ("ema", "raw"):
            of_track = [record for record in self.reference if record.track == track]
            if of_track:
                return of_track[-1]
        return self.reference[-1] if self.reference else None


def read_runs(folders: Iterable[Path]) -> tuple[Run, ...]:
    """Read several run folders and give each arm a name that no other arm has."""
    paths = [Path(folder) for folder in folders]
    resolved = [path.resolve() for path in paths]
    for index, path in enumerate(resolved):
        if path in resolved[:index]:
            raise UserError(f"{paths[index]}: the same run folder is given twice")
    return tuple(read_run(path, name) for path, name in zip(paths, _names(resolved), strict=True))


def read_run(folder: Path, name: str | None = None) -> Run:
    """Read one run folder.

    Args:
        folder: What `flowtempo train` wrote. Parts that a run does not have yet may be missing.
        name: The arm's name; by default the folder's.

    Raises:
        UserError: No such folder, not a run folder, or a record that cannot be read; names the file.
    """
    if not folder.is_dir():
        raise UserError(f"{folder}: no such run folder")
    if not (folder / CONFIG).is_file() and not (folder / METRICS).is_file():
        raise UserError(f"{folder}: not a run folder (it has neither {CONFIG} nor {METRICS})")
    notes: list[str] = []
    config_text, config = _read_config(folder / CONFIG, notes)
    steps, seconds, reference = _read_metrics(folder / METRICS, notes)
    evaluations = sorted(
        (_read_evaluation(path) for path in sorted((folder / "evaluations").glob("*.json"))),
        key=lambda record: (record.step, record.file),
    )
    samples = sorted((_step_of(path), path) for path in (folder / "samples").glob("step-*.png"))
    return Run(
        name=name or folder.resolve().name,
        folder=folder,
        config=config,
        config_text=config_text,
        steps=steps,
        seconds=seconds,
        reference=reference,
        evaluations=tuple(evaluations),
        samples=tuple(samples),
        notes=tuple(notes),
    )


def differences(runs: Sequence[Run]) -> dict[str, tuple[Any, ...]]:
    """The dotted config keys whose values are not the same in every run, with each run's value."""
    flat = [dict(_flatten(run.config)) for run in runs if run.config]
    keys = dict.fromkeys(key for config in flat for key in config)
    table = {key: tuple(config.get(key) for config in flat) for key in keys}
    return {key: values for key, values in table.items() if any(value != values[0] for value in values)}


def _names(folders: Sequence[Path]) -> list[str]:
    names = []
    for folder in folders:
        others = [other for other in folders if other != folder]
        length = 1
        while any(other.parts[-length:] == folder.parts[-length:] for other in others):
            length += 1
        names.append("/".join(folder.parts[-length:]))
    return names


def _flatten(node: dict[Any, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    for key, value in node.items():
        if isinstance(value, dict):
            yield from _flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not a UTF-8 text file ({error.reason} at byte {error.start})") from error
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from error


def _read_config(path: Path, notes: list[str]) -> tuple[str, dict[str, Any]]:
    if not path.is_file():
        notes.append(f"no {CONFIG}: the settings of this arm are not known")
        return "", {}
    text = _read_text(path)
    try:
        config = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" at line {mark.line + 1}" if mark else ""
        raise UserError(f"{path}: not valid YAML{where}") from error
    if not isinstance(config, dict):
        raise UserError(f"{path}: a mapping of settings is expected, found {type(config).__name__}")
    return text, config


def _read_metrics(
    path: Path, notes: list[str]
) -> tuple[int | None, float | None, tuple[ReferenceLoss, ...]]:
    """Read the log. A resumed run repeats the steps after its checkpoint: the later line counts."""
    if not path.is_file():
        notes.append(f"no {METRICS}: this arm has logged nothing")
        return None, None, ()
    text = _read_text(path)
    lines = text.split("\n")
    if lines[-1]:
        # A running or killed process may have written half a line; every finished line ends in a newline.
        notes.append(f"the last line of {METRICS} is incomplete and left out")
    steps: int | None = None
    seconds: float | None = None
    reference: dict[tuple[str, int], ReferenceLoss] = {}
    for number, line in enumerate(lines[:-1], start=1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        record = _parse_object(line, where)
        if record.get("kind") == "train":
            steps = _integer(record, "step", where)
            seconds = _number(record, "seconds", where) if "seconds" in record else seconds
        elif record.get("kind") == "reference":
            loss = _reference(record, where)
            # Not an overwrite in place: what an abandoned stretch left after this step is void.
            reference = {key: old for key, old in reference.items() if old.step < loss.step or key[0] != loss.track}
            reference[loss.track, loss.step] = loss
    return steps, seconds, tuple(sorted(reference.values(), key=lambda loss: (loss.track, loss.step)))


def _reference(record: dict[str, Any], where: str) -> ReferenceLoss:
    bands = record.get("bands", [])
    if not isinstance(bands, list) or not all(isinstance(band, dict) for band in bands):
        raise UserError(f"{where}: 'bands' must be a list of objects with low, high and loss")
    return ReferenceLoss(
        step=_integer(record, "step", where),
        track=str(record.get("track", "raw")),
        loss=_number(record, "loss", where),
        bands=tuple(Band(*(_number(band, key, where) for key in ("low", "high", "loss"))) for band in bands),
    )


def _read_evaluation(path: Path) -> Evaluation:
    record = _parse_object(_read_text(path), str(path))
    if record.get("schema") != 1:
        raise UserError(f"{path}: schema {record.get('schema')!r} is not known here (1 is)")
    card = record.get("card", {})
    if not isinstance(card, dict):
        raise UserError(f"{path}: 'card' must be an object, found {type(card).__name__}")
    return Evaluation(
        step=_integer(record, "step", str(path)),
        frechet=_number(record, "frechet", str(path)),
        stderr=None if record.get("stderr") is None else _number(record, "stderr", str(path)),
        card=card,
        file=path.name,
    )


def _parse_object(text: str, where: str) -> dict[str, Any]:
    try:
        record = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise UserError(f"{where}: not valid JSON; the file is damaged or was cut") from error
    if not isinstance(record, dict):
        raise UserError(f"{where}: a JSON object is expected, found {type(record).__name__}")
    return record


def _number(record: dict[str, Any], key: str, where: str) -> float:
    value = record.get(key)
    if value is None and key in record:
        return math.nan  # how writers that hold to strict JSON spell a loss that is not finite
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UserError(f"{where}: '{key}' must be a number, found {value!r}")
    return float(value)


def _integer(record: dict[str, Any], key: str, where: str) -> int:
    value = record.get(key)
    if isinstance(value, bool) or not isinstance(value, int):
        raise UserError(f"{where}: '{key}' must be a whole number, found {value!r}")
    return value


def _step_of(path: Path) -> int:
    digits = path.stem.removeprefix("step-").split("-")[0]
    if not digits.isdigit():
        raise UserError(f"{path}: the file's name must be step-<number>.png")
    return int(digits)
