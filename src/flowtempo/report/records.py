"""What a run left on the disk, read back and checked; nothing here trains, generates or plots."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import yaml

from flowtempo.errors import UserError
from flowtempo.metrics import Evaluation, Provenance

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
class Run:
    """One arm as its folder tells it.

    Attributes:
        name: The shortest ending of the folder's path that no other arm of the report has.
        config: The resolved config; empty when the folder has none.
        config_text: The same as the file has it.
        header: What the run wrote down at its start: data, model size, densities.
        shares: The probability that its times fall into each of equal bands of t; empty when not logged.
        steps: The last optimizer step that was logged, None before the first.
        seconds: Training time at that step.
        skipped: Steps that were left out because their gradients were not finite.
        reference: By track and step, ascending.
        evaluations: By step, ascending.
        samples: (step, PNG grid), ascending.
        probes: (step, probe file), ascending.
        notes: What a reader must know about the files, one sentence each.
        stale: Evaluations of other images than those that now lie beside the grid, one sentence each.
    """

    name: str
    folder: Path
    config: dict[str, Any]
    config_text: str
    header: dict[str, Any]
    shares: tuple[float, ...]
    steps: int | None
    seconds: float | None
    skipped: int
    reference: tuple[ReferenceLoss, ...]
    evaluations: tuple[Evaluation, ...]
    samples: tuple[tuple[int, Path], ...]
    probes: tuple[tuple[int, Path], ...] = ()
    notes: tuple[str, ...] = ()
    stale: tuple[str, ...] = ()

    def setting(self, dotted: str, default: Any = None) -> Any:
        """The value of a config key such as `"timesteps.spacing"`."""
        return _at(self.config, dotted, default)

    def told(self, dotted: str, default: Any = None) -> Any:
        """The value of a header key such as `"data.name"`."""
        return _at(self.header, dotted, default)

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
    log = _read_metrics(folder / METRICS, notes)
    evaluations = _read_evaluations(folder / "evaluations")
    return Run(
        name=printable(name or folder.resolve().name),
        folder=folder,
        config=config,
        config_text=config_text,
        header=log.header,
        shares=log.shares,
        steps=log.steps,
        seconds=log.seconds,
        skipped=log.skipped,
        reference=tuple(sorted(log.reference.values(), key=lambda loss: (loss.track, loss.step))),
        evaluations=tuple(evaluations),
        samples=_by_step(folder / "samples", "png"),
        probes=_by_step(folder / "probes", "json"),
        notes=tuple(notes),
        stale=tuple(line for record in evaluations if (line := _stale(folder, record))),
    )


def of_one_network(runs: Sequence[Run]) -> tuple[tuple[Run, ...], list[str]]:
    """The runs with only the evaluations of one feature network: the one that most evaluations have.

    Returns:
        The runs, and a sentence about what was left out, if anything was.
    """
    count = Counter(record.card.features for run in runs for record in run.evaluations)
    if len(count) < 2:
        return tuple(runs), []
    (shown, _), *others = count.most_common()
    kept = tuple(
        replace(run, evaluations=tuple(record for record in run.evaluations if record.card.features == shown))
        for run in runs
    )
    left_out = ", ".join(f"{name} ({number})" for name, number in others)
    return kept, [
        f"Frechet distances are shown for the features {shown}, which most evaluations have. Left out, since "
        f"distances in other features are not comparable: {left_out}."
    ]


def printable(text: str) -> str:
    """The text with bytes that are not UTF-8, as a file name may hold, as escapes."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _by_step(folder: Path, ending: str) -> tuple[tuple[int, Path], ...]:
    """The files step-N.ending of a folder by N."""
    found = ((re.fullmatch(rf"step-(\d+)\.{ending}", path.name), path) for path in folder.glob("step-*"))
    return tuple(sorted((int(match[1]), path) for match, path in found if match))


def _read_evaluations(folder: Path) -> list[Evaluation]:
    """By step; of two of the same step and features, the one whose file names the features."""
    found: dict[tuple[int, str], Evaluation] = {}
    # step-N.json is how earlier versions named what is step-N-FEATURES.json now.
    for path in sorted(folder.glob("*.json"), key=lambda path: (path.stem.count("-"), path.name)):
        record = Evaluation.load(path)
        found[record.step, record.card.features] = record
    return sorted(found.values(), key=lambda record: record.step)


def _stale(folder: Path, record: Evaluation) -> str | None:
    path = folder / "samples" / f"step-{record.step:08d}.json"
    if not path.is_file():
        return None
    made = _parse_object(_read_text(path), str(path))
    card = record.card.to_dict()
    changed = [
        item.name for item in fields(Provenance) if item.name in made and made[item.name] != card[item.name]
    ]
    if not changed:
        return None
    return (
        f"the evaluation of step {record.step:,} with features {record.card.features} is of other images "
        f"than those shown (they differ in {', '.join(changed)}); run flowtempo evaluate again"
    )


def differences(runs: Sequence[Run]) -> dict[str, tuple[Any, ...]]:
    """The dotted config keys whose values are not the same in every run, with each run's value."""
    flat = [dict(flatten(run.config)) for run in runs if run.config]
    keys = dict.fromkeys(key for config in flat for key in config)
    table = {key: tuple(config.get(key) for config in flat) for key in keys}
    return {key: values for key, values in table.items() if any(value != values[0] for value in values)}


def _at(node: Any, dotted: str, default: Any) -> Any:
    for key in dotted.split("."):
        if not isinstance(node, dict) or key not in node:
            return default
        node = node[key]
    return node


def _names(folders: Sequence[Path]) -> list[str]:
    names = []
    for folder in folders:
        others = [other for other in folders if other != folder]
        length = 1
        while any(other.parts[-length:] == folder.parts[-length:] for other in others):
            length += 1
        names.append("/".join(folder.parts[-length:]))
    return names


def flatten(node: dict[Any, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every leaf of nested mappings with its dotted key."""
    for key, value in node.items():
        if isinstance(value, dict):
            yield from flatten(value, f"{prefix}{key}.")
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


@dataclass
class _Log:
    header: dict[str, Any] = field(default_factory=dict)
    shares: tuple[float, ...] = ()
    steps: int | None = None
    seconds: float | None = None
    skipped: int = 0
    reference: dict[tuple[str, int], ReferenceLoss] = field(default_factory=dict)


def _read_metrics(path: Path, notes: list[str]) -> _Log:
    log = _Log()
    if not path.is_file():
        notes.append(f"no {METRICS}: this arm has logged nothing")
        return log
    lines = _read_text(path).split("\n")
    if lines[-1]:
        # A running or killed process may have written half a line; every finished line ends in a newline.
        notes.append(f"the last line of {METRICS} is incomplete and left out")
    for number, line in enumerate(lines[:-1], start=1):
        if line.strip():
            _take(log, _parse_object(line, f"{path}, line {number}"), f"{path}, line {number}")
    return log


def _take(log: _Log, record: dict[str, Any], where: str) -> None:
    """Add one line to the log; kinds that the report does not show are passed over."""
    kind = record.get("kind")
    if kind == "header":
        log.header = record
        bands = _list_of_objects(_at(record, "proposal.bands", []), "proposal.bands", where)
        log.shares = tuple(_number(band, "density", where) for band in bands)
    elif kind == "train":
        log.steps = _integer(record, "step", where)
        log.seconds = _number(record, "seconds", where)
        log.skipped = _integer(record, "skipped", where)
    elif kind == "reference":
        loss = _reference(record, where)
        log.reference[loss.track, loss.step] = loss


def _reference(record: dict[str, Any], where: str) -> ReferenceLoss:
    bands = _list_of_objects(record.get("bands", []), "bands", where)
    return ReferenceLoss(
        step=_integer(record, "step", where),
        track=str(record.get("track", "raw")),
        loss=_number(record, "loss", where),
        bands=tuple(Band(*(_number(band, key, where) for key in ("low", "high", "loss"))) for band in bands),
    )


def _parse_object(text: str, where: str) -> dict[str, Any]:
    try:
        record = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where}: not valid JSON; the file is damaged or was cut") from error
    if not isinstance(record, dict):
        raise UserError(f"{where}: a JSON object is expected, found {type(record).__name__}")
    return record


def _list_of_objects(value: Any, key: str, where: str) -> list[dict[str, Any]]:
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise UserError(f"{where}: '{key}' must be a list of objects")
    return value


def _number(record: dict[str, Any], key: str, where: str) -> float:
    value = record.get(key)
    if value is None and key in record:
        return math.nan  # how writers that hold to strict JSON spell a loss that is not finite
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UserError(f"{where}: '{key}' must be a number, found {value!r}")
    try:
        return float(value)
    except OverflowError as error:
        raise UserError(f"{where}: '{key}' is too large a number") from error


def _integer(record: dict[str, Any], key: str, where: str) -> int:
    value = record.get(key)
    if isinstance(value, bool) or not isinstance(value, int):
        raise UserError(f"{where}: '{key}' must be a whole number, found {value!r}")
    return value
