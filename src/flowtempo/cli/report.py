"""`flowtempo report`: profiles, densities and runs -> one HTML page."""

from __future__ import annotations

from pathlib import Path

from flowtempo.cli.console import say
from flowtempo.errors import UserError
from flowtempo.report import write_report

EXAMPLES = """
  flowtempo report runs/uniform runs/designed --profile profile.json --densities density.json
  flowtempo report runs/uniform --output uniform.html
"""


def report(
    runs: list[str],
    profile: str | None = None,
    densities: list[str] = [],  # noqa: B006 (never changed; jsonargparse reads the default)
    output: str | None = None,
) -> None:
    """Write one self-contained HTML page that compares runs; the first is what the others are compared with.

    Args:
        runs: Run folders, one per arm.
        profile: What `flowtempo measure` wrote.
        densities: What `flowtempo design` wrote, one file or more.
        output: The page; null is report.html in the first run folder.
    """
    page = Path(output or Path(runs[0]) / "report.html")
    if page.is_dir():
        raise UserError(f"{page} is a folder: name a file for the page")
    write_report(
        page,
        runs=[Path(run) for run in runs],
        profile=None if profile is None else Path(profile),
        densities=[Path(density) for density in densities],
    )
    say(f"report: {page}")
