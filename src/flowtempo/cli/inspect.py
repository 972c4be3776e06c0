"""`flowtempo inspect`: what a density, a recipe or a run looks at, over t and over log-SNR."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from pathlib import Path

import torch
from rich.markup import escape

from flowtempo.cli.console import BANDS, check_paths, say, table
from flowtempo.cli.subjects import Asked, Subject, is_there, measured_std, read_subject
from flowtempo.design.snr import DECIBELS, LOG_SNR_EDGES, SnrPdf, tenths
from flowtempo.errors import UserError
from flowtempo.generation import Solver, SolverName, interval
from flowtempo.predictions import Prediction
from flowtempo.variance import Bracket

EXAMPLES = """
  flowtempo inspect "logit_normal(-0.75, 1)"
  flowtempo inspect uniform density.json runs/designed --plot snr.png --html snr.html
  flowtempo inspect digits --profile profile.json --plot snr.png
  flowtempo inspect uniform@ddpm_linear uniform@ddpm_cosine uniform@trigonometric --prediction noise
  flowtempo inspect uniform@ddpm_linear@0.5 uniform@ddpm_linear@1 uniform@linear@0.5 uniform@linear@1
"""

_STARVED = 0.05
# Letters of names that fit side by side on a terminal; more, and numbers stand for them.
_WIDEST = 56


def inspect(
    what: list[str],
    interpolant: str | None = None,
    prediction: Prediction | None = None,
    weighting: str | None = None,
    std: float | None = None,
    profile: str | None = None,
    solver: SolverName = "heun",
    steps: int | None = None,
    plot: str | None = None,
    html: str | None = None,
) -> None:
    """Show where densities look: their mass over t and over log-SNR, and what their losses weigh there.

    Each WHAT is a density's text form, a density.json, a run folder, a recipe's name or a YAML file, perhaps
    followed by an interpolant and a standard deviation: `uniform@ddpm_linear@0.5`. Several are compared.
    Tenths of t that generation visits and training hardly sees are warned of.

    Args:
        what: What to inspect.
        interpolant: What t means; null is what a file says, or linear. One behind an @ comes first.
        prediction: What the network's output stands for; null is what a file says, or velocity.
        weighting: Weight of the loss; null is what a file says, or none.
        std: Standard deviation of the data that the model sees; null is that of a run's data, or of
            `profile`, or 1.
        profile: Also draw what `flowtempo measure` wrote, beside the densities.
        solver: What generates: its times are those that training must have seen.
        steps: Intervals of euler or heun; null is 50.
        plot: Draw the densities over log-SNR into this PNG.
        html: Write an interactive page, which needs no network.
    """
    if not what:
        raise UserError("nothing to inspect: name a density, a density.json, a run folder or a recipe")
    _check_outputs(what, profile, plot, html)
    chosen = Solver(solver, steps)
    bracket = None if profile is None else Bracket.load(profile)
    measured = None if bracket is None else measured_std(bracket.upper.data, str(profile))
    asked = Asked(interpolant, prediction, weighting, std)
    subjects = [read_subject(word, asked, measured) for word in what]
    asked.check_effect(what)
    print_subjects(subjects)
    for subject in subjects:
        if (line := starved(subject, chosen)) is not None:
            say(line)
    if plot is not None:
        from flowtempo.report.inspect import save_snr_png

        save_snr_png(_named(subjects), Path(plot), bracket, measured or 1.0)
        say(f"plot: {plot}")
    if html is not None:
        from flowtempo.report.inspect import write_inspection

        write_inspection(_named(subjects), Path(html))
        say(f"page: {html}")


def print_subjects(subjects: Sequence[Subject]) -> None:
    """Print what was resolved, and side by side the bands of t and of log-SNR."""
    for number, subject in enumerate(subjects, start=1):
        _print_subject(subject, number)
    heads = [escape(subject.name) for subject in subjects]
    if sum(map(len, heads)) > _WIDEST:
        heads = [f"[{number}]" for number in range(1, len(subjects) + 1)]
    snrs = [subject.snr for subject in subjects]
    table(
        "% of the mass per band of t (0 is noise, 1 is data)",
        ["t", *heads],
        _transposed(BANDS, [tenths(snr.density) for snr in snrs]),
    )
    pairs = list(itertools.pairwise((-math.inf, *LOG_SNR_EDGES, math.inf)))
    bands = [f"{low} to {high}" for low, high in pairs[1:-1]]
    table(
        "% of the mass per band of log-SNR of the input, log(alpha² std² / sigma²)",
        ["log-SNR", *heads],
        _transposed(
            [f"below {LOG_SNR_EDGES[0]}", *bands, f"above {LOG_SNR_EDGES[-1]}"],
            [[snr.mass(low, high) for low, high in pairs] for snr in snrs],
        ),
    )
    table(
        "% of density × weight on the squared error of the data prediction, of what lies in these bands",
        ["log-SNR", *heads],
        _transposed(bands, [_shares(snr.emphasis_bands().tolist()) for snr in snrs]),
    )


def starved(subject: Subject, solver: Solver) -> str | None:
    """A warning of the tenths of t that generation visits and that get under 5% of the draws."""
    visits = _visits(subject.snr, solver)
    masses = tenths(subject.snr.density)
    poor = [k for k in range(10) if visits[k] and masses[k] < _STARVED]
    if not poor or subject.varies is not None:
        return None
    told = ", ".join(f"{100 * masses[k]:.2g}% in t {k / 10:g} to {(k + 1) / 10:g}" for k in poor)
    # A floor f leaves (1 - f) of the mass and adds a tenth of f.
    least = min(masses[k] for k in poor)
    floor = math.ceil(100 * (_STARVED - least) / (0.1 - least)) / 100
    how = solver.name if solver.steps is None else f"{solver.name} in {solver.steps} steps"
    return (
        f"warning: {subject.name} draws {told}: under {100 * _STARVED:g}%, and {how} visits each; "
        f"mixture(..., {floor:g}) would give them {100 * _STARVED:g}%"
    )


def _visits(snr: SnrPdf, solver: Solver) -> list[bool]:
    """Whether the model is evaluated in each tenth of t."""
    start, end = interval(snr.interpolant, snr.prediction)
    if solver.steps is None:
        # It chooses its own times; they have no gaps as wide as a tenth.
        return [True] * 10
    times = torch.linspace(start, end, solver.steps + 1, dtype=torch.float64)
    if solver.name == "euler":
        times = times[:-1]
    found = (10 * times).floor().clamp(0, 9).long().tolist()
    return [k in found for k in range(10)]


def _print_subject(subject: Subject, number: int) -> None:
    snr = subject.snr
    say(f"[{number}] {subject.name}")
    say(f"  density    {snr.density}", end="")
    say("" if snr.target is None else f", weighted to the target {snr.target}")
    if subject.varies is not None:
        say(f"  draws      change during training by {subject.varies}: what is shown is the target")
    say(f"  objective  {snr.prediction} on the {snr.interpolant} interpolant", end="")
    say(f", weighting {'none' if snr.weighting is None else snr.weighting}")
    say(f"  input      standard deviation {snr.std:.4g} ({subject.said})")
    if (form := snr.closed_form()) is not None:
        say(f"  log-SNR    {form}")
    low, middle, high = snr.quantile(torch.tensor([0.05, 0.5, 0.95], dtype=torch.float64)).tolist()
    say(f"  log-SNR    median {middle:.2f} ({DECIBELS * middle:.1f} dB), 90% from {low:.2f} to {high:.2f}")


def _check_outputs(what: Sequence[str], profile: str | None, plot: str | None, html: str | None) -> None:
    read = {f"WHAT {index + 1}": word for index, word in enumerate(dict.fromkeys(what)) if is_there(word)}
    if html is not None:
        check_paths(output=html, plot=plot, profile=profile, **read)
    elif plot is not None:
        check_paths(output=plot, plot=None, profile=profile, **read)


def _named(subjects: Sequence[Subject]) -> list[tuple[str, SnrPdf]]:
    return [(subject.name, subject.snr) for subject in subjects]


def _transposed(bands: Sequence[str], shares: Sequence[Sequence[float]]) -> list[list[str]]:
    """Rows of a table: a band, and the share of each subject in it as a percentage."""
    return [
        [band, *(f"{100 * share:.1f}" for share in row)]
        for band, row in zip(bands, zip(*shares, strict=True), strict=True)
    ]


def _shares(values: Sequence[float]) -> list[float]:
    whole = sum(values)
    return [value / whole if whole > 0 else 0.0 for value in values]
