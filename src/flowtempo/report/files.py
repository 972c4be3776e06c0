"""One PNG per record: a profile, a density, a probe."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure, SubFigure

from flowtempo.design import Design
from flowtempo.errors import UserError
from flowtempo.interpolants import STANDARD, Interpolant, Linear
from flowtempo.predictions import Prediction
from flowtempo.report import figures, style
from flowtempo.report.figures import probes, variance
from flowtempo.variance import Bracket
from flowtempo.variance.probe import Probe
from flowtempo.variance.verdict import verdict

_KEY = 0.5  # inches that the keys above the panels of a row take


def save_profile_png(
    profile: Path,
    output: Path,
    *,
    interpolant: Interpolant | None = None,
    prediction: Prediction = "velocity",
) -> None:
    """Draw a `profile.json` into one PNG.

    Over log-SNR the posterior variance and S, with the range in which the lower edge has collapsed and the
    class-conditional bracket; in words what they say; over t the target variance on the standard paths.

    Args:
        profile: What `flowtempo measure` wrote.
        output: The PNG.
        interpolant: What t means above and in the words; linear by default.
        prediction: The regression target of the lower panels.

    Raises:
        UserError: The profile cannot be read; names the file.
    """
    bracket, interpolant = Bracket.load(profile), interpolant or Linear()
    with _drawing(profile):
        figure = style.new_figure(3 * style.WIDTH, 2 * (style.HEIGHT + _KEY))
        cells: Any = figure.subfigures(2, len(STANDARD))
        variance.draw_posterior_variance(cells[0, 0], bracket, interpolant)
        variance.draw_explained_variance(cells[0, 1], bracket, interpolant)
        _write(cells[0, 2], "What this says", verdict(bracket, interpolant))
        for cell, path in zip(cells[1], STANDARD, strict=True):
            variance.draw_target_variance(cell, bracket, path, prediction)
        style.to_png(figure, output)


def save_density_png(design: Path, output: Path) -> None:
    """Draw a `density.json` into a PNG, against uniform, LN(0, 1) and its nearest logit-normal.

    Raises:
        UserError: The density cannot be read; names the file.
    """
    loaded = Design.load(design)
    with _drawing(design):
        style.to_png(figures.densities([(f"designed ({loaded.rule})", loaded)]), output)


def save_probe_png(probe: Path, output: Path, profile: Path | None = None) -> None:
    """Draw a probe into a PNG: gradients beside the target variance and the loss, over t and log-SNR.

    Args:
        probe: What `flowtempo probe` wrote.
        output: The PNG.
        profile: What `flowtempo measure` wrote, for the target variance; none is drawn without it.

    Raises:
        UserError: A file cannot be read, or the probe does not say what was probed; names the file.
    """
    loaded = Probe.load(probe)
    bracket = None if profile is None else Bracket.load(profile)
    with _drawing(probe):
        rows = [
            (probes.gradient_lines(loaded, bracket), probes.gradient_label(bracket)),
            (probes.loss_lines(loaded), "relative to own mean over t"),
        ]
        if loaded.groups:
            rows.append((probes.group_lines(loaded), "E|g|² of the group"))
        figure = style.new_figure(2 * style.WIDTH, len(rows) * (style.HEIGHT + _KEY))
        cells: Any = figure.subfigures(len(rows), 1, squeeze=False)
        for cell, (lines, label) in zip(cells[:, 0], rows, strict=True):
            left, right = cell.subplots(1, 2, sharey=True)
            for axes, over in zip((left, right), probes.OVER, strict=True):
                probes.panel(axes, loaded, lines, over)
            right.tick_params(labelleft=True)
            left.set_ylabel(label)
            style.legend(cell, left, columns=6)
        style.to_png(figure, output)


@contextmanager
def _drawing(source: Path) -> Iterator[None]:
    """The report's style, and one line for values that no figure can show."""
    with style.styled(), np.errstate(all="ignore"):
        try:
            yield
        except UserError as error:
            raise UserError(f"{source}: {error}") from error
        except (ValueError, ArithmeticError) as error:
            raise UserError(f"{source}: cannot be drawn, its values are too extreme") from error


def _write(figure: SubFigure | Figure, title: str, lines: list[str]) -> None:
    """Sentences in place of a plot."""
    # "t = 0.2" stays in one line.
    text = "\n\n".join(textwrap.fill(line.replace(" = ", "\u00a0=\u00a0"), 64) for line in lines)
    figure.text(0.06, 0.97, title, va="top", fontweight="bold")
    figure.text(0.06, 0.90, text, va="top", fontsize=9, linespacing=1.25)
