"""`flowtempo export`: density.json -> what another trainer understands."""

from __future__ import annotations

import re

from flowtempo.cli.console import check_paths, say, table
from flowtempo.densities import Density
from flowtempo.errors import UserError
from flowtempo.interop import TARGETS, Export, Options, read_subject, save_table
from flowtempo.interop import export as export_to

# Farther away than this in t, what is drawn is another density than the one that was asked for.
_FAR = 0.02
EXAMPLES = """
  flowtempo export density.json --to diffusers
  flowtempo export density.json --to diffusers --shift 3 --output sigmas.csv
  flowtempo export "logit_normal(-0.75, 1)" --to sd-scripts
  flowtempo export density.json --to sit
  flowtempo export density.json --to table --output density.csv --steps 1001
"""


def export(
    density: str, *, to: str, shift: float | None = None, steps: int | None = None, output: str | None = None
) -> None:
    """Say a density in another trainer's words.

    Prints what to type or paste, which way that trainer counts time, and how far what it then draws is from
    the density. Trainers: diffusers, sd-scripts, sd-scripts-sd3, musubi-tuner, simpletuner (flags); sit (and
    LightningDiT), repa, flow_matching, torchcfm, guided-diffusion (objects); table (CSV or JSON).

    Args:
        density: What `flowtempo design` wrote, or a density's text form.
        to: The trainer.
        shift: For diffusers: the shift of the script's scheduler.
        steps: Steps of the trainer's grid, or rows of the table.
        output: Also write the table that the trainer can read, as .csv or .json.
    """
    read = {"density": density} if density.strip().endswith(".json") else {}
    if output is not None:
        check_paths(output=output, plot=None, **read)
    if steps is not None and steps < 1:
        raise UserError(f"steps = {steps} must be at least 1")
    subject = read_subject(density)
    made = export_to(subject, to, Options(shift=shift, steps=steps))
    if output is not None and not made.table:
        raise UserError(f"output = {output} has no effect: there is no table for {to}; leave it out")
    _print(made, subject.name, to)
    if output is not None:
        save_table(made.table, output)
        say(f"table: {output} ({TARGETS[to].table})")


def _print(made: Export, name: str, to: str) -> None:
    say(f"{name} for {to}: {made.direction}")
    say("")
    for line in made.settings.splitlines():
        say(f"  {line}")
    say("")
    apart = made.distance
    if apart.wasserstein == apart.total_variation == 0:
        say("draws the density itself")
    else:
        say(
            f"draws {_short(made.density)}: {apart.wasserstein:.4f} away in t (Wasserstein-1),"
            f" {apart.total_variation:.4f} in total variation"
        )
    if apart.wasserstein > _FAR:
        say(
            f"warning: that is far: times move by {apart.wasserstein:.2f} on average, and {to} has no flags"
            " that come nearer"
        )
    if made.others:
        table(
            "other flags",
            ["", "away in t", "total variation"],
            [
                [fit.flags, f"{fit.distance.wasserstein:.4f}", f"{fit.distance.total_variation:.4f}"]
                for fit in made.others
            ],
        )
    for note in made.notes:
        say(f"note: {note}")


def _short(density: Density) -> str:
    """Its text form with four digits; that of many bands is not worth reading."""
    text = re.sub(r"-?\d+\.\d+(e-?\d+)?", lambda match: f"{float(match[0]):.4g}", str(density))
    return text if len(text) <= 100 else f"a {text.partition('(')[0]} density"
