"""What the commands show on a terminal: progress with time left, and small tables."""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from flowtempo.errors import UserError


class _Console(Console):
    """A console whose reader may leave: the work goes on, unseen, instead of ending half done."""

    def on_broken_pipe(self) -> None:
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


# Narrow terminals and pipes get whole lines too: the words of a path or density must not be broken.
console = _Console(soft_wrap=True, highlight=False)


@contextlib.contextmanager
def progress_bar(description: str) -> Iterator[Callable[..., None]]:
    """Show a bar with the time left.

    Yields:
        A function to call with the fraction done, 0 to 1 (None: what it was), and if wanted with another
        description until the next call.
    """
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("left"),
    )
    progress = Progress(*columns, console=console)
    task = progress.add_task(f"{description:<22}", total=1.0)

    def update(fraction: float | None, description: str = description) -> None:
        # Not before: a mistake found at the start must not leave a bar at 0% above its message.
        progress.start()
        progress.update(task, completed=fraction, description=f"{description:<22}")

    try:
        yield update
    finally:
        progress.stop()


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table; all columns but the first are aligned right."""
    grid = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for index, column in enumerate(columns):
        grid.add_column(column, justify="left" if index == 0 else "right", overflow="fold")
    for row in rows:
        grid.add_row(*row)
    console.print(grid)


def say(text: str, end: str = "\n") -> None:
    """Print one line as it is (paths may hold square brackets)."""
    console.print(text, markup=False, end=end)


def say_next(*words: str) -> None:
    """Print the command that usually follows, ready to be pasted into a shell."""
    say(f"next: flowtempo {shlex.join(words)}")


# Ten bands of t, as table heads.
BANDS = (*(f".{k}-.{k + 1}" for k in range(9)), ".9-1")


def print_header(header: Mapping[str, Any]) -> None:
    """Print what is about to be trained, and over which times: the header record of a run."""
    data, model, objective, proposal = (header[key] for key in ("data", "model", "objective", "proposal"))
    shape = "x".join(str(size) for size in data["shape"])
    say(f"data       {data['name']}: {data['count']:,} images {shape}, {header['epochs']:.1f} epochs")
    size = f"{model['parameters'] / 1e6:.2f}M parameters"
    say(f"model      {model['name']} {model['size']}, {size}, on {header['device']}")
    say(f"objective  {objective['prediction']} on the {objective['interpolant']} interpolant", end="")
    say("".join(f", {part}" for part in _objective_parts(objective)))
    changes = proposal.get("adaptive") or proposal.get("curriculum")
    moved = proposal["density"] == proposal["target"] and (not changes or proposal["moves_objective"])
    weights = "weights 1" if moved else "weighted by target / density"
    if changes:
        what = "follows" if proposal.get("adaptive") else "changes by"
        say(f"target     {'what is drawn' if moved else proposal['target']}")
        say(
            f"drawn from a density that {what} {changes}, {proposal['spacing']} spacing, {weights}; at first:"
        )
    else:
        say(f"target     {proposal['target']}")
        most = "" if moved else f", at most {proposal['max_weight']:.3g}"
        say(f"drawn from {proposal['density']}, {proposal['spacing']} spacing, {weights}{most}")
    bands = proposal["bands"]
    table(
        "% of the mass per band of t (0 is noise, 1 is data)",
        ["", *BANDS],
        [
            [name, *(f"{100 * band[name]:.1f}" for band in bands)]
            for name in (["target"] if moved else ["target", "density"])
        ],
    )


def _objective_parts(objective: Mapping[str, Any]) -> list[str]:
    """What the objective has beside path and prediction."""
    parts = [f"direction loss x {objective['direction']}"] if objective["direction"] else []
    parts += [f"weighting {objective['weighting']}"] if objective.get("weighting") else []
    parts += ["learned uncertainty"] if objective.get("learned_uncertainty") else []
    return parts + [objective[key] for key in ("multi_sample", "coupling") if objective.get(key)]


def check_paths(*, output: str, plot: str | None, **read: str | None) -> None:
    """Refuse, before the work begins, to write where nothing can be written, or over another of the files.

    Raises:
        UserError: Two of the paths are the same file, or `output` or `plot` cannot be a file.
    """
    for written in filter(None, (output, plot)):
        if Path(written).is_dir():
            raise UserError(f"{written} is a folder: name a file")
        above = next(each for each in Path(written).absolute().parents if each.exists())
        if not above.is_dir() or not os.access(above, os.W_OK):
            why = "may not be changed" if above.is_dir() else "is a file"
            raise UserError(f"{written}: cannot be written, {above} {why}: name another folder")
    seen: dict[Path, str] = {}
    for name, path in {**read, "output": output, "plot": plot}.items():
        if path is None:
            continue
        other = seen.setdefault(Path(path).resolve(), name)
        if other != name:
            raise UserError(f"{name} and {other} are both {path}: name another file for one of them")
