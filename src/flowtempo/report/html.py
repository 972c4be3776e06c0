"""One self-contained HTML file from what measuring, designing, training and evaluating left on the disk."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import jinja2

import flowtempo
from flowtempo.design import Design, design
from flowtempo.errors import UserError
from flowtempo.files import atomic_write
from flowtempo.interpolants import Interpolant, interpolant
from flowtempo.predictions import PREDICTIONS, Prediction
from flowtempo.report import figures, style, summary
from flowtempo.report.pictures import Missing, Picture, drawn, embedded
from flowtempo.report.records import CONFIG, Run, differences, of_one_network, printable, read_runs
from flowtempo.variance import Bracket

_Figure = Picture | Missing


def write_report(
    output: Path, *, runs: Sequence[Path] = (), profile: Path | None = None, densities: Sequence[Path] = ()
) -> None:
    """Write the report. Every part is optional, and the page says what is missing.

    Args:
        output: The HTML file, written atomically. The same records give the same bytes.
        runs: Run folders, one per arm; the others are compared with the first.
        profile: What `flowtempo measure` wrote.
        densities: What `flowtempo design` wrote.

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
    with style.styled():
        page = _environment().get_template("report.html.j2").render(_context(arms, bracket, designs, notes))
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
    notes: Sequence[str],
) -> dict[str, Any]:
    changed = differences(arms)
    with_config = [arm.name for arm in arms if arm.config]
    return {
        "version": flowtempo.__version__,
        "lead": _lead(arms, bracket),
        "columns": summary.columns(arms),
        "rows": [summary.row(arm, index) for index, arm in enumerate(arms)],
        "verdict": summary.verdict(arms),
        "caveats": [*notes, *summary.caveats(arms, changed, bracket, designs)],
        "pictures": {
            **_profile_pictures(bracket, *_objective(arms, designs)),
            "densities": _density_picture(designs, bracket),
            **_training_pictures(arms),
        },
        "facts": summary.facts(bracket) if bracket else [],
        "masses": summary.masses(arms, designs),
        "design_lines": [summary.design_line(name, design) for name, design in designs],
        "samples": [_samples(arm, index) for index, arm in enumerate(arms)],
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


def _profile_pictures(
    bracket: Bracket | None, path: Interpolant, prediction: Prediction
) -> dict[str, _Figure]:
    if bracket is None:
        missing = Missing("No profile was given; flowtempo measure writes one.")
        return {"posterior_variance": missing, "target_variance": missing}
    return {
        "posterior_variance": drawn(
            lambda: figures.posterior_variance(bracket, path),
            "posterior-variance",
            "How much of the data the noise hides",
            "Posterior variance per dimension over log-SNR: a lower and an upper edge, falling to the right.",
            "Variance of the clean data when its noisy version is known, per dimension. At the left there is "
            "only noise and the curve is the data's own variance; at the right the noisy version gives the "
            "data away. The truth lies between the edges. The lower one has seen its own answers, so it is "
            "too sure; the upper one is the least of the estimates in grey that have not. Bands: ± 2 "
            "standard errors.",
        ),
        "target_variance": drawn(
            lambda: figures.target_variance(bracket, path, prediction),
            "target-variance",
            "Noise in the training target",
            f"Variance of the {prediction} target over t, from the lower and from the upper edge.",
            f"Variance of the {prediction} target when x_t is known: the part of the loss that no model can "
            "remove. Where the curve is high, a training sample says least. The rule “paper” makes the "
            "density proportional to it. Bands: ± 2 standard errors.",
        ),
    }


def _density_picture(designs: Sequence[tuple[str, Design]], bracket: Bracket | None) -> _Figure:
    if not designs:
        return Missing("No density was given; flowtempo design writes one from a profile.")
    names = ", ".join(name for name, _ in designs)
    other_edge = _from_other_edge(designs[0][1], bracket) if bracket and len(designs) == 1 else None
    other = f" The dash-dotted curve is what the {other_edge.edge} edge would give." if other_edge else ""
    return drawn(
        lambda: figures.densities(designs, other_edge),
        "densities",
        "Where times are drawn",
        f"Probability densities over t: {names}, the nearest logit-normal of each, uniform and LN(0, 1).",
        "The area under a curve between two times is the share of training samples drawn there. The dashed "
        "curve is the logit-normal nearest to the table, for trainers that take only a mean and a standard "
        f"deviation.{other}",
    )


def _from_other_edge(made: Design, bracket: Bracket) -> Design | None:
    """The same design from the bracket's other edge, if it is from this bracket and the other edge allows."""
    if made.edge is None or made.profile_hash != getattr(bracket, made.edge).digest:
        return None
    try:
        return design(
            bracket,
            interpolant(made.interpolant),
            rule=made.rule,
            edge="lower" if made.edge == "upper" else "upper",
            floor=made.floor,
            prediction=made.prediction,
            target=None if made.moves_objective else made.target,
            low=made.density.low,
            high=made.density.high,
        )
    except UserError:
        return None


def _training_pictures(arms: Sequence[Run]) -> dict[str, _Figure]:
    pictures: dict[str, _Figure] = {
        "loss_by_band": Missing("No run has logged a reference loss by band of t."),
        "loss_over_steps": Missing("No run has logged a reference loss."),
        "frechet": Missing("No run has been evaluated; flowtempo evaluate writes a Frechet distance."),
    }
    finals = [(arm.name, arm.final_reference()) for arm in arms]
    banded = [name for name, loss in finals if loss and loss.bands]
    if banded:
        below = f" Below: the change against {banded[0]}; less is better." if len(banded) > 1 else ""
        pictures["loss_by_band"] = drawn(
            lambda: figures.loss_by_band(arms),
            "loss-by-band",
            "Loss along the noise axis",
            f"Reference loss in intervals of t for {', '.join(banded)}.",
            "Loss of the final weights on fixed images, times and noise, which are the same whatever density "
            f"an arm trained with.{below}",
        )
    if referenced := [arm.name for arm in arms if arm.reference]:
        pictures["loss_over_steps"] = drawn(
            lambda: figures.loss_over_steps(arms),
            "loss-over-steps",
            "Loss over training",
            f"Reference loss over optimizer steps for {', '.join(referenced)}.",
            "The same reference loss during training, all t weighted alike. Lines with markers: averaged "
            "weights (EMA). Thin dotted lines: the weights as trained.",
        )
    if evaluated := [arm.name for arm in arms if arm.evaluations]:
        pictures["frechet"] = drawn(
            lambda: figures.frechet_over_steps(arms),
            "frechet-over-steps",
            "Frechet distance over training",
            f"Frechet distance over optimizer steps for {', '.join(evaluated)}.",
            "Distance between generated and real images in the features named on the cards; less is better. "
            "Bars: ± 2 standard errors from the finite number of generated images, not from training seeds; "
            "arms stand side by side at each step.",
        )
    return pictures


def _samples(arm: Run, index: int) -> _Figure:
    if not arm.samples:
        return Missing(f"{arm.name}: no samples; flowtempo generate writes them.")
    step, path = arm.samples[-1]
    return embedded(
        path,
        f"samples-{index}",
        arm.name,
        f"Grid of images generated by {arm.name} at step {step}",
        f"Generated at step {step:,}.",
    )
