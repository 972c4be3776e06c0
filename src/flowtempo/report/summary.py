"""The numbers and sentences of the report: the table of arms, the verdict, the tenths of t."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from flowtempo.densities import Density, LogitNormal
from flowtempo.design import Design
from flowtempo.errors import UserError
from flowtempo.interpolants import interpolant
from flowtempo.report.figures import REFERENCES
from flowtempo.report.records import Run, flatten
from flowtempo.report.style import SERIES
from flowtempo.variance import Bracket
from flowtempo.variance.profile import POSTERIOR

_COLUMNS = (
    ("target", "target density", False),
    ("density", "drawn from", False),
    ("spacing", "spacing", False),
    ("steps", "steps", True),
    ("frechet", "Frechet distance", True),
    ("loss", "reference loss", True),
    ("seconds", "seconds", True),
)
_NONE = "–"
# What arms may differ in without putting a comparison of their timesteps in doubt.
_HARMLESS = ("timesteps.", "seed", "log_every", "reference_every", "checkpoint_every", "keep_checkpoints")
# What two evaluations may differ in and still be comparable.
_OWN_TO_AN_ARM = ("seed", "checkpoint", "versions")


def columns(arms: Sequence[Run]) -> list[dict[str, Any]]:
    """The columns of the table of arms; `drawn from` only if some arm draws from another than its target."""
    weighted = any(arm.setting("timesteps.density") for arm in arms)
    return [
        {"key": key, "label": label, "number": number}
        for key, label, number in _COLUMNS
        if key != "density" or weighted
    ]


def row(arm: Run, index: int) -> dict[str, Any]:
    """One line of the table of arms, as text."""
    target = str(arm.setting("timesteps.target", _NONE))
    reference = arm.final_reference()
    evaluation = arm.evaluations[-1] if arm.evaluations else None
    return {
        "name": arm.name,
        "colour": index % len(SERIES),
        "target": target,
        "density": str(arm.setting("timesteps.density") or target),
        "spacing": str(arm.setting("timesteps.spacing", _NONE)),
        "steps": _NONE if arm.steps is None else f"{arm.steps:,}",
        "frechet": with_error(evaluation.frechet, evaluation.stderr) if evaluation else _NONE,
        "loss": f"{reference.loss:.4g}" if reference else _NONE,
        "seconds": _NONE if arm.seconds is None else f"{arm.seconds:,.0f}",
    }


def with_error(value: float, stderr: float) -> str:
    """A value and its standard error, both to the second significant digit of the error."""
    if not (math.isfinite(value) and math.isfinite(stderr) and stderr > 0):
        return f"{value:.4g}"
    decimals = max(0, 1 - math.floor(math.log10(stderr)))
    if abs(value) >= 1e15 or stderr >= 1e15 or decimals > 15:
        return f"{value:.4g} ± {stderr:.2g}"
    return f"{value:,.{decimals}f} ± {stderr:,.{decimals}f}"


def verdict(arms: Sequence[Run]) -> str:
    """What the table does and does not say."""
    if len(arms) < 2:
        return "There is one arm, and nothing to compare it with."
    seeds = [str(seed) for seed in dict.fromkeys(arm.setting("seed") for arm in arms) if seed is not None]
    told = f" with {'seed' if len(seeds) == 1 else 'seeds'} {', '.join(seeds)}" if seeds else ""
    return (
        f"Every arm was trained once{told}. The ± is the standard error from the finite "
        "number of generated images; it does not contain what another training seed would change, which is "
        "often larger than the differences seen here. Take them as leads, and repeat the arms over several "
        "seeds before you believe one."
    )


def caveats(
    arms: Sequence[Run],
    changed: Mapping[str, Any],
    bracket: Bracket | None,
    designs: Sequence[tuple[str, Design]],
) -> list[str]:
    """What makes the arms' numbers less comparable than the table looks, one sentence each."""
    lines = []
    if keys := [key for key in changed if not key.startswith(_HARMLESS)]:
        lines.append(
            f"The arms differ in more than their timesteps: {', '.join(keys)}. "
            "A difference between them may come from any of these."
        )
    cards = [evaluation.card.to_dict() for arm in arms for evaluation in arm.evaluations]
    fields = [
        key
        for key in (cards[0] if cards else ())
        if key not in _OWN_TO_AN_ARM and any(card[key] != cards[0][key] for card in cards)
    ]
    if fields:
        lines.append(
            f"The evaluations differ in {', '.join(fields)}: their Frechet distances are not comparable."
        )
    scarce = [card for card in cards if min(card["samples"], card["reference"]) < card["dim"]]
    if scarce:
        card = scarce[0]
        lines.append(
            f"The Frechet distances come from {min(card['samples'], card['reference']):,} images and "
            f"{card['dim']:,} features. With fewer images than features most of the value is bias: compare "
            "arms evaluated alike, and no other numbers."
        )
    measured = bracket.upper.data.get("fingerprint") if bracket else None
    elsewhere = [arm.name for arm in arms if arm.told("data.fingerprint", measured) != measured]
    if measured and elsewhere:
        lines.append(
            f"Trained on other data than the profile was measured on, or on a part: {', '.join(elsewhere)}."
        )
    for name, design in designs:
        if bracket and design.quantity in POSTERIOR and design.profile_hash not in _digests(bracket):
            lines.append(f"{name}: made from another profile than the one shown here.")
        for arm in arms:
            path = str(arm.setting("objective.interpolant", design.interpolant))
            if not _same_path(path, design.interpolant):
                lines.append(
                    f"{name}: made for the {design.interpolant} path, but {arm.name} trains on the {path} "
                    "path, where the same t is another noise level."
                )
    for arm in arms:
        lines += [f"{arm.name}: {sentence}." for sentence in arm.stale]
        if arm.skipped:
            lines.append(f"{arm.name}: {arm.skipped:,} steps were left out, their gradients were not finite.")
        if arm.evaluations and arm.steps is not None and arm.evaluations[-1].step != arm.steps:
            lines.append(
                f"{arm.name}: the last evaluation is of step {arm.evaluations[-1].step:,}, the run is at "
                f"step {arm.steps:,}."
            )
    return lines


def _same_path(first: str, second: str) -> bool:
    try:
        return interpolant(first) == interpolant(second)
    except UserError:
        return first == second


def _digests(bracket: Bracket) -> list[str]:
    below = _digests(bracket.by_class) if bracket.by_class else []
    return [bracket.lower.digest, bracket.upper.digest, *below]


def distances(arms: Sequence[Run]) -> dict[str, Any] | None:
    """The Frechet distances of every arm by step."""
    evaluated = [arm for arm in arms if arm.evaluations]
    if not evaluated:
        return None
    steps = sorted({evaluation.step for arm in evaluated for evaluation in arm.evaluations})
    cells = [
        {record.step: with_error(record.frechet, record.stderr) for record in arm.evaluations}
        for arm in evaluated
    ]
    return {
        "labels": [arm.name for arm in evaluated],
        "lines": [(f"{step:,}", [cell.get(step, _NONE) for cell in cells]) for step in steps],
    }


def cards(arm: Run) -> dict[str, Any] | None:
    """What an arm's evaluations have in common, and a table of what they have not."""
    if not arm.evaluations:
        return None
    flat = [{key: plain(value) for key, value in flatten(e.card.to_dict())} for e in arm.evaluations]
    shared = {key: value for key, value in flat[0].items() if all(card.get(key) == value for card in flat)}
    own = [key for key in dict.fromkeys(key for card in flat for key in card) if key not in shared]
    return {
        "shared": list(shared.items()),
        "labels": ["step", "Frechet distance", *own],
        "lines": [
            [f"{e.step:,}", with_error(e.frechet, e.stderr), *(card.get(key, _NONE) for key in own)]
            for e, card in zip(arm.evaluations, flat, strict=True)
        ],
    }


def plain(value: Any) -> str:
    """A setting as the config file spells it."""
    return value if isinstance(value, str) else json.dumps(value, default=str)


def facts(bracket: Bracket) -> list[tuple[str, str]]:
    """Where the profile comes from."""
    data = bracket.upper.data
    pairs = [
        ("data", str(data.get("name", "not named"))),
        ("images", f"{data['count']:,}" if isinstance(data.get("count"), int) else _NONE),
        ("dimension", f"{bracket.upper.dim:,}{_shape(data.get('shape'))}"),
        ("E|x|² per dimension", f"{bracket.upper.second_moment:.4g}"),
        ("lower edge", _counted(bracket.lower.method, bracket.lower.counts)),
        ("upper edge", _counted(bracket.upper.method, bracket.upper.counts)),
        ("with the class known", _by_class(bracket.by_class)),
        ("fingerprint", str(data.get("fingerprint", _NONE))),
    ]
    return [pair for pair in pairs if pair[1] != _NONE]


def _by_class(bracket: Bracket | None) -> str:
    return _NONE if bracket is None else _counted(bracket.upper.method, bracket.upper.counts)


def masses(arms: Sequence[Run], designs: Sequence[tuple[str, Design]]) -> dict[str, Any] | None:
    """The share of training in each tenth of t: of designs, fits and references, or else of the arms."""
    columns: list[tuple[str, list[float]]] = []
    for name, design in designs:
        fit = LogitNormal(design.fit.mean, design.fit.std)
        columns += [(name, _tenths(design.density)), ("nearest LN", _tenths(fit))]
    if columns:
        columns += [(label, _tenths(density)) for label, density in REFERENCES]
    else:
        columns = [(arm.name, list(arm.shares)) for arm in arms if len(arm.shares) == 10]
    if not columns:
        return None
    widest = max(max(shares) for _, shares in columns)
    return {
        "labels": [label for label, _ in columns],
        "lines": [
            (
                f"{tenth / 10:.1f}–{(tenth + 1) / 10:.1f}",
                [
                    {"text": f"{100 * shares[tenth]:.1f} %", "width": f"{_part(shares[tenth], widest):.1f}"}
                    for _, shares in columns
                ],
            )
            for tenth in range(10)
        ],
    }


def _part(share: float, widest: float) -> float:
    """Width of a bar in percent; none where the shares are all zero or not numbers."""
    return 100 * share / widest if widest > 0 and math.isfinite(share / widest) else 0.0


def _tenths(density: Density) -> list[float]:
    return [density.mass(tenth / 10, (tenth + 1) / 10) for tenth in range(10)]


def design_line(name: str, design: Design) -> str:
    """How a density was made and how well two numbers stand for it."""
    fit = design.fit
    use = "moves the objective" if design.moves_objective else f"keeps the objective over {design.target}"
    mean, std = _with_stderr(fit.mean, fit.mean_stderr), _with_stderr(fit.std, fit.std_stderr)
    text = (
        f"{name}: rule {design.rule}{_origin(design)}, for the {design.prediction} target on the "
        f"{design.interpolant} path, with a uniform floor of {design.floor:g}; it {use}. The nearest "
        f"logit-normal has mean {mean} and standard deviation {std} of logit t; its draws lie "
        f"{fit.distance:.3f} away from the table's in t on average. Trainers that count t from data to noise "
        "need the mean with the other sign."
    )
    if part := design.collapsed:
        text += (
            f" {100 * part.mass:.0f} % of the density lies at t {part.from_t:.2g} to {part.to_t:.2g}, where "
            "the posterior estimate has collapsed."
        )
    return text


def _origin(design: Design) -> str:
    if design.edge:
        known = " of the class-conditional bracket" if design.quantity == "class_posterior_variance" else ""
        return f" from the {design.edge} edge{known}"
    group = f" of {design.group}" if design.group else ""
    return f" from the {design.quantity.replace('_', ' ')}{group}"


def _with_stderr(value: float, stderr: float | None) -> str:
    text = f"{value:.3f}" if stderr is None else with_error(value, stderr)
    return text.replace("-", "−")


def _shape(shape: Any) -> str:
    return f" ({' × '.join(str(side) for side in shape)})" if isinstance(shape, list) else ""


def _counted(method: str, counts: Mapping[str, Any]) -> str:
    told = ", ".join(f"{key} {value:,}" for key, value in counts.items() if isinstance(value, int) and value)
    return f"{method.replace('_', ' ')} ({told})" if told else method.replace("_", " ")
