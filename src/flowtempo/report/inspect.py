"""One picture and one interactive page of where densities look over log-SNR."""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
import torch
from markupsafe import Markup
from torch import Tensor

import flowtempo
from flowtempo.design.snr import LOG_SNR_EDGES, SnrPdf, tenths
from flowtempo.errors import UserError
from flowtempo.files import atomic_write
from flowtempo.report import style
from flowtempo.report.figures.snr import snr_pdfs
from flowtempo.variance import Bracket

# Log-SNR of the interpolant in the page's tables: wide enough that the slider brings in no empty margin.
_FIRST, _LAST, _POINTS = -20.0, 20.0, 401


def save_snr_png(
    subjects: Sequence[tuple[str, SnrPdf]], output: Path, bracket: Bracket | None = None, std: float = 1.0
) -> None:
    """Draw densities over log-SNR into one PNG; the arguments are those of `figures.snr.snr_pdfs`.

    Raises:
        UserError: Their values cannot be drawn.
    """
    with style.styled(), np.errstate(all="ignore"):
        try:
            figure = snr_pdfs(subjects, bracket, std)
        except UserError:
            raise
        except (ValueError, ArithmeticError) as error:
            raise UserError(f"{output}: cannot be drawn, the values are too extreme") from error
        style.to_png(figure, output)


def write_inspection(subjects: Sequence[tuple[str, SnrPdf]], output: Path) -> None:
    """Write one self-contained page that shows densities over log-SNR and answers to the pointer.

    Curves can be hidden, and the standard deviation of the input changed: that translates every curve by
    2 log of the factor, exactly. The page holds its script and its numbers and asks for nothing else.

    Args:
        subjects: By name.
        output: The HTML file, written atomically.

    Raises:
        UserError: `output` exists and is no web page.
    """
    if output.is_dir() or (output.exists() and output.suffix.lower() not in (".html", ".htm")):
        raise UserError(f"{output}: exists and is no web page: name a file that ends in .html")
    script = resources.files("flowtempo.report").joinpath("templates/inspect.js").read_text(encoding="utf-8")
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("flowtempo.report"),
        autoescape=True,  # names of files and densities are a person's text and never markup
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    page = environment.get_template("inspect.html.j2").render(
        version=flowtempo.__version__,
        script=Markup(script),
        digest=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        data={"edges": [LOG_SNR_EDGES[0], LOG_SNR_EDGES[-1]], "curves": [_curve(*each) for each in subjects]},
        rows=[_row(index, name, snr) for index, (name, snr) in enumerate(subjects)],
        tenths=[f"{k / 10:g} to {(k + 1) / 10:g}" for k in range(10)],
    )
    with atomic_write(output) as file:
        file.write(page.encode("utf-8", "backslashreplace").decode("utf-8"))


def _curve(name: str, snr: SnrPdf) -> dict[str, Any]:
    """What the script reads: values over the log-SNR of the interpolant, to which the input's is added."""
    grid = torch.linspace(_FIRST, _LAST, _POINTS, dtype=torch.float64)
    log_snr = grid + snr.shift
    return {
        "name": name,
        "std": snr.std,
        "first": _FIRST,
        "step": (_LAST - _FIRST) / (_POINTS - 1),
        "t": _numbers(snr.time(log_snr)),
        "p": _numbers(snr.pdf(log_snr)),
        "w": _numbers(snr.weight(log_snr)),
        "qw": _numbers(snr.normalised_emphasis(log_snr)),
    }


def _row(index: int, name: str, snr: SnrPdf) -> dict[str, Any]:
    masses = tenths(snr.density)
    return {
        "index": index,
        "colour": index % len(style.SERIES),
        "dash": " ".join(f"{length:g}" for length in style.line(index)["linestyle"][1]),
        "name": name,
        "density": str(snr.density),
        "target": None if snr.target is None else str(snr.target),
        "objective": f"{snr.prediction} on {snr.interpolant}",
        "weighting": "none" if snr.weighting is None else str(snr.weighting),
        "std": f"{snr.std:.4g}",
        "form": snr.closed_form(),
        "masses": [{"text": f"{100 * mass:.1f} %", "width": f"{100 * mass:.1f}"} for mass in masses],
    }


def _numbers(values: Tensor) -> list[float | None]:
    """Six digits each; None where there is no number, which JSON has no word for."""
    return [float(f"{value:.6g}") if math.isfinite(value) else None for value in values.tolist()]
