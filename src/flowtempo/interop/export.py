"""What an export says, and the form that every target has."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from flowtempo.densities import Density
from flowtempo.design import Distance
from flowtempo.interop.families import Family, Fit, fits
from flowtempo.interop.subject import Subject

Table = Mapping[str, Sequence[float]]


@dataclass(frozen=True)
class Options:
    """What a target can be told; None where nothing was said.

    Attributes:
        shift: The shift that the trainer's own scheduler applies.
        steps: How many steps the trainer's grid has, or how many rows a table is to have.
    """

    shift: float | None = None
    steps: int | None = None


@dataclass(frozen=True)
class Export:
    """A density in a trainer's words.

    Attributes:
        direction: Which way the trainer counts time, and what that does to the numbers.
        settings: What to type or paste: flags, or lines of Python.
        density: What the trainer then draws, in flowtempo's time (t = 1 is data).
        distance: How far that is from the density that was exported.
        others: What the trainer's other families would give, nearest first.
        notes: What else has to be known.
        table: Columns for a file, where there is something to write.
    """

    direction: str
    settings: str
    density: Density
    distance: Distance
    others: tuple[Fit, ...] = ()
    notes: tuple[str, ...] = ()
    table: Table = field(default_factory=dict)


@dataclass(frozen=True)
class Target:
    """A trainer that a density can be exported to.

    Attributes:
        summary: One line for lists.
        export: Does it.
        options: The names of the options that it uses.
        table: What its table holds; None if it has none.
    """

    summary: str
    export: Callable[[Subject, Options], Export]
    options: frozenset[str] = frozenset()
    table: str | None = None


def by_flags(
    families: Sequence[Family],
    subject: Subject,
    direction: str,
    notes: Sequence[str] = (),
    table: Table | None = None,
) -> Export:
    """The nearest density that a trainer's flags can name."""
    best, *others = fits(families, subject.density)
    return Export(
        direction, best.flags, best.density, best.distance, tuple(others), tuple(notes), table or {}
    )


def exactly(subject: Subject, direction: str, settings: str, notes: Sequence[str] = ()) -> Export:
    """The density itself, where a trainer can be given an object."""
    return Export(direction, settings, subject.density, Distance(0.0, 0.0), notes=tuple(notes))
