"""`flowtempo export`: a density in another trainer's words."""

from __future__ import annotations

import re

from flowtempo.cli.console import check_paths, say, table
from flowtempo.errors import UserError
from flowtempo.interop import TARGETS, Export, Options, read_subject, save_table
from flowtempo.interop import export as export_density

EXAMPLES = """
  flowtempo export density.json --to diffusers
  flowtempo export density.json --to diffusers --shift 3 --output sigmas.json
  flowtempo export "logit_normal(-0.75, 1)" --to sd-scripts
  flowtempo export density.json --to sit
  flowtempo export density.json --to guided-diffusion --steps 4000 --output steps.csv
  flowtempo export density.json --to table --output density.csv

for --to:
""" + "\n".join(f"  {name:<18}{target.summary}" for name, target in TARGETS.items())

# Beyond this distance what the trainer draws is another density, for practical purposes.
FAR = 0.02


def export(
    density: str,
    to: str | None = None,
    output: str | None = None,
    shift: float | None = None,
    steps: int | None = None,
) -> None:
    """Say a density in another trainer's words: its flags, or lines of Python, or a table.

    Args:
        density: What `flowtempo design` wrote, or a density's text form.
        to: The trainer, one of those below.
        output: Where the trainer's table goes, as .csv or .json: for table, diffusers, simpletuner and
            guided-diffusion.
        shift: For diffusers: the shift of the script's scheduler; null is 1.
        steps: Rows of the table, or guided-diffusion's steps; null is the trainer's usual number.
    """
    if to not in TARGETS:
        asked = "no trainer is named" if to is None else f"unknown trainer {to!r}"
        raise UserError(f"{asked}: give --to one of {', '.join(TARGETS)}")
    if output is not None:
        if TARGETS[to].table is None:
            raise UserError(f"output = {output} has no effect on {to}, which has no table: leave it out")
        check_paths(output=output, plot=None, density=density)
    elif to == "table":
        raise UserError("a table needs a file: give --output density.csv")
    elif steps is not None and to in ("diffusers", "simpletuner"):
        raise UserError(
            f"steps = {steps} are the rows of a table: name its file with --output, or leave it out"
        )
    made = export_density(read_subject(density), to, Options(shift, steps))
    print_export(made)
    if output is not None:
        save_table(made.table, output)
        say(f"table: {output} ({', '.join(made.table)})")


def print_export(made: Export) -> None:
    """Print the settings, the direction of time, how far the trainer's density is, and what else matters."""
    say(made.settings)
    say("")
    say(f"direction: {made.direction}")
    away = made.distance
    said = f"{away.wasserstein:.4f} in t (Wasserstein-1), total variation {away.total_variation:.4f}"
    if away.total_variation > 0:
        say(f"drawn there, as flowtempo counts: {_short(str(made.density))}")
    say(f"distance to the density: {said}")
    if away.wasserstein > FAR:
        say(
            f"warning: this is far: on average the mass is moved by {away.wasserstein:.2g} of the axis; the"
            " trainer draws another density than yours and has no nearer one"
        )
    for note in made.notes:
        say(f"note: {note}")
    if made.others:
        table(
            "the nearest of its other densities",
            ["", "away in t"],
            [[fit.flags, f"{fit.distance.wasserstein:.4f}"] for fit in made.others],
        )


def _short(text: str) -> str:
    """A density's text form with five digits."""
    return re.sub(r"-?\d+\.\d{5,}", lambda found: f"{float(found[0]):.5g}", text)
