"""`flowtempo report`: profiles, densities and runs -> one HTML page."""

from __future__ import annotations

from pathlib import Path

from flowtempo.cli.console import say
from flowtempo.errors import UserError
from flowtempo.report import write_report

EXAMPLES = """
  flowtempo report runs/uniform runs/designed --profile profile.json --densities density.json
  flowtempo report runs/uniform --output uniform.html
  flowtempo report --profile profile.json --probes probe.json
"""


def report(
    runs: list[str],
    profile: str | None = None,
    densities: list[str] = [],  # noqa: B006 (never changed; jsonargparse reads the default)
    probes: list[str] = [],  # noqa: B006
    output: str | None = None,
) -> None:
    """Write one self-contained HTML page of what was measured, and compare runs with the first of them.

    Args:
        runs: Run folders, one per arm; their own probes are shown too.
        profile: What `flowtempo measure` wrote.
        densities: What `flowtempo design` wrote, one file or more.
        probes: What `flowtempo probe` wrote, one file or more.
        output: The page; null is report.html in the first run folder, or else beside the first file.
    """
    files = [*([] if profile is None else [profile]), *densities, *probes]
    if not runs and not files:
        raise UserError("nothing to report: name a run folder, or --profile, --densities or --probes")
    page = Path(output or (Path(runs[0]) if runs else Path(files[0]).parent) / "report.html")
    if page.is_dir():
        raise UserError(f"{page} is a folder: name a file for the page")
    write_report(
        page,
        runs=[Path(run) for run in runs],
        profile=None if profile is None else Path(profile),
        densities=[Path(density) for density in densities],
        probes=[Path(probe) for probe in probes],
    )
    say(f"report: {page}")
