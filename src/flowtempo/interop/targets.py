"""The trainers that a density can be exported to."""

from __future__ import annotations

from dataclasses import asdict

from flowtempo.errors import UserError
from flowtempo.interop.diffusers import DIFFUSERS
from flowtempo.interop.export import Export, Options, Target
from flowtempo.interop.flow_matching import FLOW_MATCHING, TORCHCFM
from flowtempo.interop.guided_diffusion import GUIDED_DIFFUSION
from flowtempo.interop.kohya import MUSUBI, SD_SCRIPTS, SD_SCRIPTS_SD3
from flowtempo.interop.simpletuner import SIMPLETUNER
from flowtempo.interop.subject import Subject
from flowtempo.interop.table import TABLE
from flowtempo.interop.transport import REPA, SIT

TARGETS: dict[str, Target] = {
    "diffusers": DIFFUSERS,
    "sd-scripts": SD_SCRIPTS,
    "sd-scripts-sd3": SD_SCRIPTS_SD3,
    "musubi-tuner": MUSUBI,
    "simpletuner": SIMPLETUNER,
    "sit": SIT,
    "repa": REPA,
    "flow_matching": FLOW_MATCHING,
    "torchcfm": TORCHCFM,
    "guided-diffusion": GUIDED_DIFFUSION,
    "table": TABLE,
}
"""Names that `export` knows."""


def export(subject: Subject, to: str, options: Options | None = None) -> Export:
    """Say a density in a trainer's words.

    Args:
        subject: What to export.
        to: One of `TARGETS`.
        options: What the trainer is like, where it matters.

    Raises:
        UserError: If the trainer is unknown or cannot express it, or an option has no effect on it.
    """
    if to not in TARGETS:
        raise UserError(f"unknown trainer {to!r}; known: {', '.join(TARGETS)}")
    target = TARGETS[to]
    options = options or Options()
    for name, value in asdict(options).items():
        if value is not None and name not in target.options:
            raise UserError(f"{name} = {value} has no effect on {to}: leave it out")
    return target.export(subject, options)
