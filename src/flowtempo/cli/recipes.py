"""`flowtempo recipes`: what ships."""

from __future__ import annotations

from collections.abc import Sequence

from flowtempo.cli.console import say
from flowtempo.recipes import Recipe, resolve, shipped

EXAMPLES = """
  flowtempo recipes
  flowtempo recipes min-snr
  flowtempo train digits min-snr --run runs/min-snr
"""


def recipes(show: list[str]) -> None:
    """List the recipes that ship, or print some of them.

    Experiments hold data and model. Methods are the few keys that make a method of a paper, and are laid
    over an experiment: `flowtempo train EXPERIMENT METHOD --run FOLDER`.

    Args:
        show: Print these recipes instead.
    """
    if show:
        for name in show:
            say(resolve(name).read_text(encoding="utf-8"), end="")
        return
    found = shipped()
    say("experiments (flowtempo train EXPERIMENT --run FOLDER):")
    _list([recipe for recipe in found if not recipe.is_method])
    say("methods (flowtempo train EXPERIMENT METHOD --run FOLDER):")
    _list([recipe for recipe in found if recipe.is_method])


def _list(found: Sequence[Recipe]) -> None:
    width = max(len(recipe.name) for recipe in found) + 2
    for recipe in found:
        source = "" if recipe.source is None else f" [{recipe.source}]"
        say(f"  {recipe.name:<{width}}{recipe.title}{source}")
