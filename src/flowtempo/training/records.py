"""What a run writes down as it goes: metrics.jsonl, and the same numbers for TensorBoard."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

from flowtempo.files import atomic_write

METRICS = "metrics.jsonl"


class Records:
    """Appends records to a run folder.

    Args:
        folder: The run folder.
        keep: On resuming, the checkpoint's step: lines of later steps are dropped, because the steps that
            they tell of will be done again. None starts anew.
    """

    def __init__(self, folder: Path, keep: int | None = None) -> None:
        # Imported here because it takes seconds.
        from torch.utils.tensorboard import SummaryWriter

        path = folder / METRICS
        if keep is not None:
            _truncate(path, keep)
        self._file = open(path, "a", encoding="utf-8")  # noqa: SIM115 (open as long as the run)
        self._board = SummaryWriter(
            str(folder / "tensorboard"), purge_step=None if keep is None else keep + 1
        )

    def write(self, record: dict[str, Any]) -> None:
        """Write one record; it needs `kind` and `step`."""
        self._file.write(json.dumps(strict(record), allow_nan=False) + "\n")
        self._file.flush()
        for tag, value in _scalars(record):
            self._board.add_scalar(tag, value, record["step"])

    def sync(self) -> None:
        """Return when all that was written is on the disk."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._board.flush()

    def close(self) -> None:
        """Close the files."""
        self._file.close()
        self._board.close()


def strict(value: Any) -> Any:
    """`value` with null for every number that JSON cannot hold."""
    if isinstance(value, dict):
        return {key: strict(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [strict(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _scalars(record: dict[str, Any]) -> list[tuple[str, float]]:
    kind = record["kind"]
    prefix = f"{kind}/{record['track']}" if "track" in record else kind
    if kind not in ("train", "reference", "probe"):
        return []
    pairs = [
        (f"{prefix}/{key}", float(value))
        for key, value in record.items()
        if key != "step" and isinstance(value, (int, float))
    ]
    for band in record.get("bands", []):
        pairs.append((f"{prefix}/band {band['low']:.1f}-{band['high']:.1f}", band["loss"]))
    return pairs


def _truncate(path: Path, keep: int) -> None:
    if not path.exists():
        return
    lines = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            if json.loads(line)["step"] <= keep:
                lines.append(line + "\n")
        except (ValueError, KeyError, TypeError):
            continue  # half a line of a run that was killed
    with atomic_write(path) as file:
        file.writelines(lines)
