"""Recipes: YAML files that ship in the wheel.

A recipe at the top of this folder is an experiment: data, model and optimizer. One in `methods/` is a method
of a paper, the few keys that make it, to be laid over an experiment: `flowtempo train digits min-snr --run
FOLDER`. The comment at the top of each is its title, its source and how to use it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from flowtempo.errors import UserError

_FOLDER = Path(__file__).parent
_METHODS = _FOLDER / "methods"
_SOURCE = "Source: "


@dataclass(frozen=True)
class Recipe:
    """A shipped recipe.

    Attributes:
        name: What it is called on the command line.
        path: Its YAML file.
        title: What it does, in one line.
        source: Paper and equation, or None for an experiment.
        is_method: Whether it is laid over an experiment.
    """

    name: str
    path: Path
    title: str
    source: str | None
    is_method: bool


def shipped() -> list[Recipe]:
    """All shipped recipes: experiments first, then methods, each sorted by name."""
    return [_describe(path) for folder in (_FOLDER, _METHODS) for path in sorted(folder.glob("*.yaml"))]


def names() -> list[str]:
    """The names of the shipped recipes, experiments first."""
    return [recipe.name for recipe in shipped()]


def resolve(name_or_path: str) -> Path:
    """Find a recipe by path or, for those that ship in the package, by name.

    Raises:
        UserError: Neither a file nor a shipped name.
    """
    path = Path(name_or_path)
    if path.is_file():
        return path
    for recipe in shipped():
        if recipe.name == name_or_path:
            return recipe.path
    raise UserError(
        f"{name_or_path}: no such recipe; give a YAML file or one of the shipped names: {', '.join(names())}"
    )


def _describe(path: Path) -> Recipe:
    comment = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            break
        comment.append(line.removeprefix("#").strip())
    sources = [line.removeprefix(_SOURCE) for line in comment if line.startswith(_SOURCE)]
    source = sources[0] if sources else None
    return Recipe(path.stem, path, comment[0], source, is_method=path.parent == _METHODS)
