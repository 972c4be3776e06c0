"""The record of a design: `density.json`."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from os import PathLike, fspath
from typing import Any, get_args

import torch

from flowtempo.densities import Density, Tabulated, parse
from flowtempo.design.bootstrap import Band
from flowtempo.design.fit import LogitNormalFit
from flowtempo.design.source import Edge, Rule
from flowtempo.errors import UserError
from flowtempo.predictions import PREDICTIONS, Prediction
from flowtempo.variance import document
from flowtempo.variance.profile import Quantity


@dataclass(frozen=True)
class Collapsed:
    """The times at which a posterior estimate has collapsed, and how much of a density lies there.

    From a bracket's upper edge only that edge speaks there; from its lower edge, or from a single in-sample
    estimate, the density itself rests on the collapsed estimate.

    Attributes:
        from_t: Where it begins.
        to_t: Where the density ends.
        mass: Probability in between.
    """

    from_t: float
    to_t: float
    mass: float


@dataclass(frozen=True, eq=False)
class Design:
    """A density, what it was made from, and how to use it.

    Attributes:
        density: The table, the uniform floor included.
        target: The density that the objective is averaged over: `density` itself under the rule `paper`
            (the objective moves), another under `importance` and `neyman` (the objective is kept by weights).
        rule: How the curve became a density.
        floor: Share of the uniform density in it.
        interpolant: Text form of the path.
        prediction: The network's target.
        quantity: What the curve is.
        edge: Edge of the bracket, or None for a single profile or a probe.
        group: The probe's group of parameters, or None for the whole model.
        fit: The nearest logit-normal.
        alternatives: The nearest logit-normals under the other rules, as far as the source allows them.
        band: Confidence band from the profile's sampling error; None if the profile does not hold its blocks.
        collapsed: Where a posterior estimate has collapsed; None if it has not, or there is none.
        profile_hash: SHA-256 of the profile's content.
    """

    density: Tabulated
    target: Density
    rule: Rule
    floor: float
    interpolant: str
    prediction: Prediction
    quantity: Quantity
    edge: Edge | None
    group: str | None
    fit: LogitNormalFit
    profile_hash: str
    alternatives: dict[Rule, LogitNormalFit] = field(default_factory=dict)
    band: Band | None = None
    collapsed: Collapsed | None = None

    @property
    def moves_objective(self) -> bool:
        """Whether the density is the target (`paper`) or only a proposal."""
        return self.rule == "paper"

    def save(self, path: str | PathLike[str]) -> None:
        """Write `density.json`.

        Raises:
            UserError: If the file cannot be written.
        """
        band = self.band
        content: dict[str, Any] = {
            "table": {"t": self.density.grid.tolist(), "pdf": self.density.values.tolist()},
            "band": None
            if band is None
            else {
                "t": band.t.tolist(),
                "low": band.low.tolist(),
                "high": band.high.tolist(),
                "level": band.level,
            },
            "fit": asdict(self.fit),
            "alternatives": {rule: asdict(fit) for rule, fit in self.alternatives.items()},
            "collapsed": None if self.collapsed is None else asdict(self.collapsed),
            "rule": self.rule,
            "target": None if self.moves_objective else str(self.target),
            "floor": self.floor,
            "interpolant": self.interpolant,
            "prediction": self.prediction,
            "quantity": self.quantity,
            "edge": self.edge,
            "group": self.group,
            "profile_hash": self.profile_hash,
        }
        document.save(path, "density", content)

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Design:
        """Read what `save` wrote.

        Raises:
            UserError: If the file is missing or not a sound design.
        """
        name = fspath(path)
        reader = document.Reader(document.load(path, "density"), name)
        table = document.Reader(reader.mapping("table"), f"{name}: table")
        density = Tabulated(table.numbers("t"), table.numbers("pdf"), path=name)
        table.end()
        target = reader.value("target")
        loaded = cls(
            density=density,
            target=density if target is None else parse(str(target)),
            rule=_choice(reader, name, "rule", get_args(Rule)),
            floor=reader.number("floor"),
            interpolant=reader.text("interpolant"),
            prediction=_choice(reader, name, "prediction", PREDICTIONS),
            quantity=_choice(reader, name, "quantity", get_args(Quantity)),
            edge=_choice(reader, name, "edge", (*get_args(Edge), None)),
            group=_group(reader, name),
            fit=_fit(reader.value("fit"), f"{name}: fit"),
            profile_hash=reader.text("profile_hash"),
            alternatives=_alternatives(reader.mapping("alternatives"), name),
            band=_band(reader.value("band"), f"{name}: band"),
            collapsed=_collapsed(reader.value("collapsed"), f"{name}: collapsed"),
        )
        reader.end()
        return loaded


def _alternatives(content: dict[str, Any], name: str) -> dict[Rule, LogitNormalFit]:
    reader = document.Reader(content, f"{name}: alternatives")
    known: tuple[Rule, ...] = get_args(Rule)
    found = {
        rule: _fit(reader.value(rule), f"{name}: alternatives: {rule}") for rule in known if rule in content
    }
    reader.end()
    return found


def _fit(content: object, where: str) -> LogitNormalFit:
    reader = document.Reader(content, where)
    fit = LogitNormalFit(
        reader.number("mean"),
        reader.number("std"),
        reader.number("distance"),
        _optional_number(reader, content, "mean_stderr"),
        _optional_number(reader, content, "std_stderr"),
    )
    reader.end()
    return fit


def _group(reader: document.Reader, name: str) -> str | None:
    group = reader.value("group")
    if group is None or isinstance(group, str):
        return group
    raise UserError(f"{name}: 'group' must be a string or null, not {type(group).__name__}")


def _optional_number(reader: document.Reader, content: object, key: str) -> float | None:
    empty = isinstance(content, dict) and key in content and content[key] is None
    return reader.value(key) if empty else reader.number(key)


def _band(content: object, where: str) -> Band | None:
    if content is None:
        return None
    reader = document.Reader(content, where)
    t, low, high = (torch.tensor(reader.numbers(key), dtype=torch.float64) for key in ("t", "low", "high"))
    band = Band(t, low, high, reader.number("level"))
    reader.end()
    if not len(t) == len(low) == len(high):
        raise UserError(f"{where}: t, low and high must have one length")
    return band


def _collapsed(content: object, where: str) -> Collapsed | None:
    if content is None:
        return None
    reader = document.Reader(content, where)
    collapsed = Collapsed(reader.number("from_t"), reader.number("to_t"), reader.number("mass"))
    reader.end()
    return collapsed


def _choice(reader: document.Reader, name: str, key: str, known: tuple[Any, ...]) -> Any:
    value = reader.value(key)
    if value not in known:
        raise UserError(f"{name}: {key!r} is {value!r}; known: {', '.join(map(str, known))}")
    return value
