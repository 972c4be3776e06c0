"""Recipes: one YAML file per named method or experiment, shipped in the wheel."""

from __future__ import annotations

from pathlib import Path

from flowtempo.errors import UserError

_FOLDER = Path(__file__).parent


def names() -> list[str]:
    """The names of the shipped recipes, sorted."""
    return sorted(file.stem for file in _FOLDER.glob("*.yaml"))


def resolve(name_or_path: str) -> Path:
    """Find a recipe by path or, for those that ship in the package, by name.

    Raises:
        UserError: Neither a file nor a shipped name.
    """
    path = Path(name_or_path)
    if path.is_file():
        return path
    shipped = _FOLDER / f"{name_or_path}.yaml"
    if path.name == name_or_path and shipped.is_file():
        return shipped
    raise UserError(
        f"{name_or_path}: no such recipe; give a YAML file or one of the shipped names: {', '.join(names())}"
    )
