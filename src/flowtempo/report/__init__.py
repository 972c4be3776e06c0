"""The HTML report and its figures, from records on the disk."""

from flowtempo.report.files import save_density_png, save_probe_png, save_profile_png
from flowtempo.report.html import write_report
from flowtempo.report.records import Run, read_run, read_runs

__all__ = [
    "Run",
    "read_run",
    "read_runs",
    "save_density_png",
    "save_probe_png",
    "save_profile_png",
    "write_report",
]
