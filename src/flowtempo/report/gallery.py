"""Every picture of the page with its title and its words."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from flowtempo.design import Design, design
from flowtempo.errors import UserError
from flowtempo.interpolants import STANDARD, Interpolant, interpolant
from flowtempo.predictions import Prediction
from flowtempo.report import figures
from flowtempo.report.figures import probes
from flowtempo.report.pictures import Missing, Picture, drawn, embedded
from flowtempo.report.records import Run
from flowtempo.variance import Bracket
from flowtempo.variance.probe import Probe
from flowtempo.variance.verdict import collapse

Figure = Picture | Missing


def of_profile(
    bracket: Bracket | None, path: Interpolant, prediction: Prediction
) -> dict[str, Figure | list[Figure]]:
    """A bracket over log-SNR, and the target variance over t on every path."""
    if bracket is None:
        return {
            "posterior_variance": Missing("No profile was given; flowtempo measure writes one."),
            "variances": [],
        }
    collapsed = " Grey: the lower edge has collapsed there." if collapse(bracket.lower) is not None else ""
    others = [other for other in STANDARD if other != path]
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
            f"standard errors.{collapsed}",
        ),
        "variances": [
            drawn(
                lambda: figures.explained_variance(bracket, path),
                "explained-variance",
                "How much of the data is known",
                "S, the second moment of the best guess of the data per dimension, over log-SNR, rising.",
                "S = E|E[x1 | x_t]|²/d, what the posterior variance leaves of E|x1|²/d: the second moment of "
                "the best guess of the clean data. It starts at that of the data's mean. Bands: ± 2 standard "
                "errors.",
            ),
            _target_picture(bracket, path, prediction, "target-variance", "Noise in the training target"),
            *(
                _target_picture(
                    bracket,
                    other,
                    prediction,
                    f"target-variance-{other.name.replace('_', '-')}",
                    f"The same on the {other.name.replace('_', '-')} path",
                )
                for other in others
            ),
        ],
    }


def _target_picture(
    bracket: Bracket, path: Interpolant, prediction: Prediction, id: str, title: str
) -> Figure:
    return drawn(
        lambda: figures.target_variance(bracket, path, prediction),
        id,
        title,
        f"Variance of the {prediction} target over t, from the lower and from the upper edge.",
        f"Variance of the {prediction} target when x_t is known: the part of the loss that no model can "
        "remove. Where the curve is high, a training sample says least. The rule “paper” makes the "
        "density proportional to it. Bands: ± 2 standard errors.",
    )


def of_probe(where: str, file: Path, index: int, bracket: Bracket | None) -> list[Figure]:
    """The figures of one probe; `where` says of which model."""
    probe = Probe.load(file)
    try:
        path, _ = probes.path_of(probe)
        agreement = probes.agreement(probe, bracket)
    except UserError as error:
        raise UserError(f"{file}: {error}") from error
    beside = (
        " V(t) is the target variance from the bracket, relative to its own mean: what stands for the "
        "gradient where no model was probed."
        if bracket
        else ""
    )
    parts = [
        drawn(
            lambda: figures.gradients(probe, bracket),
            f"gradients-{index}",
            f"{where}: gradients",
            f"Second moment, variance and squared mean of one sample's gradient over t, {where}.",
            f"E|g|² of one sample's parameter gradient g and its parts, the variance and |E g|², on the "
            f"{path.name.replace('_', '-')} path, relative to the mean of E|g|² over t.{beside} Bands: ± 2 "
            f"standard errors. {agreement}",
        ),
        drawn(
            lambda: figures.gradients_and_loss(probe),
            f"gradients-loss-{index}",
            f"{where}: gradients and loss",
            f"Second moment of the gradient beside the loss and its second moment over t, {where}.",
            "A large loss is not a large gradient: each curve is relative to its own mean over t. Bands: "
            "± 2 standard errors.",
        ),
    ]
    if probe.groups:
        parts.append(
            drawn(
                lambda: figures.gradients_by_group(probe),
                f"gradients-group-{index}",
                f"{where}: groups of parameters",
                f"Second moment of the gradient in groups of parameters over t, {where}.",
                "E|g|² of each group of parameters; the groups add up to the whole. Bands: ± 2 standard "
                "errors.",
            )
        )
    return parts


def of_densities(designs: Sequence[tuple[str, Design]], bracket: Bracket | None) -> Figure:
    """Designed densities over t."""
    if not designs:
        return Missing("No density was given; flowtempo design writes one from a profile.")
    names = ", ".join(name for name, _ in designs)
    levels = [made.band.level for _, made in designs if made.band]
    band = f" Band: {100 * levels[0]:g}% from the error of what was measured." if levels else ""
    other_edge = _from_other_edge(designs[0][1], bracket) if bracket and len(designs) == 1 else None
    other = f" The dash-dotted curve is what the {other_edge.edge} edge would give." if other_edge else ""
    return drawn(
        lambda: figures.densities(designs, other_edge),
        "densities",
        "Where times are drawn",
        f"Probability densities over t: {names}, the nearest logit-normal of each, uniform and LN(0, 1).",
        "The area under a curve between two times is the share of training samples drawn there. The dashed "
        "curve is the logit-normal nearest to the table, for trainers that take only a mean and a standard "
        f"deviation.{band}{other}",
    )


def _from_other_edge(made: Design, bracket: Bracket) -> Design | None:
    """The same design from the bracket's other edge, if it is from this bracket and the other edge allows."""
    by_class = made.quantity == "class_posterior_variance"
    part = bracket.by_class if by_class else bracket
    if part is None or made.edge is None or made.profile_hash != getattr(part, made.edge).digest:
        return None
    try:
        return design(
            bracket,
            interpolant(made.interpolant),
            rule=made.rule,
            edge="lower" if made.edge == "upper" else "upper",
            by_class=by_class,
            floor=made.floor,
            prediction=made.prediction,
            target=None if made.moves_objective else made.target,
            low=made.density.low,
            high=made.density.high,
            resamples=0,
        )
    except UserError:
        return None


def of_training(arms: Sequence[Run]) -> dict[str, Figure]:
    """Losses and distances of the arms."""
    pictures: dict[str, Figure] = {
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


def of_samples(arm: Run, index: int) -> Figure:
    """The last grid of images of an arm."""
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
