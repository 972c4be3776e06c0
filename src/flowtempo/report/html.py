"""One self-contained HTML file from what measuring, designing, training and evaluating left on the disk."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import jinja2

import flowtempo
from flowtempo.design import Design
from flowtempo.errors import UserError
from flowtempo.files import atomic_write
from flowtempo.interpolants import Interpolant, interpolant
from flowtempo.predictions import PREDICTIONS, Prediction
from flowtempo.report import gallery, style, summary
from flowtempo.report.records import CONFIG, Run, differences, of_one_network, printable, read_runs
from flowtempo.variance import Bracket
from flowtempo.variance.verdict import verdict


def write_report(
    output: Path,
    *,
    runs: Sequence[Path] = (),
    profile: Path | None = None,
    densities: Sequence[Path] = (),
    probes: Sequence[Path] = (),
) -> None:
    """Write the report. Every part is optional, and the page says what is missing.

    Args:
        output: The HTML file, written atomically. The same records give the same bytes.
        runs: Run folders, one per arm; the others are compared with the first.
        profile: What `flowtempo measure` wrote.
        densities: What `flowtempo design` wrote.
        probes: What `flowtempo probe` wrote, beside the last probe of each run.

    Raises:
        UserError: A record that does not exist or cannot be read; names the file.
    """
    if output.is_dir() or (output.exists() and output.suffix.lower() not in (".html", ".htm")):
        raise UserError(f"{output}: exists and is no web page: name a file that ends in .html")
    arms, notes = of_one_network(read_runs(runs))
    bracket = None if profile is None else Bracket.load(profile)
    designs = [
        (printable(path.stem) if len(densities) > 1 else "designed", Design.load(path)) for path in densities
    ]
    probed = [(f"{arm.name}, step {arm.probes[-1][0]:,}", arm.probes[-1][1]) for arm in arms if arm.probes]
    probed += [(printable(path.stem), path) for path in probes]
    with style.styled():
        context = _context(arms, bracket, designs, probed, notes)
        page = _environment().get_template("report.html.j2").render(context)
    with atomic_write(output) as file:
        # File names that are not UTF-8 and JSON's lone surrogates have no bytes of their own.
        file.write(page.encode("utf-8", "backslashreplace").decode("utf-8"))


def _environment() -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.PackageLoader("flowtempo.report"),
        autoescape=True,  # names, settings and cards are a person's text and never markup
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _context(
    arms: Sequence[Run],
    bracket: Bracket | None,
    designs: Sequence[tuple[str, Design]],
    probed: Sequence[tuple[str, Path]],
    notes: Sequence[str],
) -> dict[str, Any]:
    changed = differences(arms)
    path, prediction = _objective(arms, designs)
    with_config = [arm.name for arm in arms if arm.config]
    return {
        "version": flowtempo.__version__,
        "lead": _lead(arms, bracket),
        "columns": summary.columns(arms),
        "rows": [summary.row(arm, index) for index, arm in enumerate(arms)],
        "verdict": summary.verdict(arms),
        "caveats": [*notes, *summary.caveats(arms, changed, bracket, designs)],
        "pictures": {
            **gallery.of_profile(bracket, path, prediction),
            "densities": gallery.of_densities(designs, bracket),
            **gallery.of_training(arms),
        },
        "said": verdict(bracket, path) if bracket else [],
        "probes": [
            picture
            for index, (where, file) in enumerate(probed)
            for picture in gallery.of_probe(where, file, index, bracket)
        ],
        "facts": summary.facts(bracket) if bracket else [],
        "masses": summary.masses(arms, designs),
        "design_lines": [summary.design_line(name, design) for name, design in designs],
        "samples": [gallery.of_samples(arm, index) for index, arm in enumerate(arms)],
        "changed": {
            "names": with_config,
            "lines": [(key, [summary.plain(value) for value in values]) for key, values in changed.items()],
        },
        "distances": summary.distances(arms),
        "arms": [
            {"name": arm.name, "notes": arm.notes, "config": arm.config_text, "cards": summary.cards(arm)}
            for arm in arms
        ],
    }


def _lead(arms: Sequence[Run], bracket: Bracket | None) -> str:
    names = [arm.told("data.name") for arm in arms] + ([bracket.upper.data.get("name")] if bracket else [])
    data = " and ".join(dict.fromkeys(str(name) for name in names if name))
    count = "1 arm" if len(arms) == 1 else f"{len(arms)} arms"
    if not arms:
        return data or "No records were given."
    return f"{count} on {data}" if data else count


def _objective(arms: Sequence[Run], designs: Sequence[tuple[str, Design]]) -> tuple[Interpolant, Prediction]:
    """What t and the target mean here: the first design's objective, or the first arm's, or the default."""
    if designs:
        return interpolant(designs[0][1].interpolant), designs[0][1].prediction
    arm = next((arm for arm in arms if arm.config), None)
    if arm is None:
        return interpolant("linear"), "velocity"
    prediction = arm.setting("objective.prediction", "velocity")
    if prediction not in PREDICTIONS:
        known = ", ".join(PREDICTIONS)
        raise UserError(
            f"{arm.folder / CONFIG}: unknown prediction {prediction!r}; the known ones are {known}"
        )
    try:
        return interpolant(str(arm.setting("objective.interpolant", "linear"))), cast(Prediction, prediction)
    except UserError as error:
        raise UserError(f"{arm.folder / CONFIG}: {error}") from error
