"""Write docs/methods.md: what each method supports, found by building it and computing a loss.

python scripts/method_table.py
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from flowtempo import recipes
from flowtempo.cli.parsing import config_from_recipes
from flowtempo.data import COUPLINGS
from flowtempo.densities import DENSITIES, Tabulated
from flowtempo.errors import UserError
from flowtempo.interpolants import INTERPOLANTS, Discrete, interpolant
from flowtempo.objectives import WEIGHTINGS
from flowtempo.objectives.targets import TARGETS
from flowtempo.predictions import PREDICTIONS
from flowtempo.timesteps import ADAPTATIONS, CURRICULA
from flowtempo.training import TrainConfig
from flowtempo.training.config import check

OUTPUT = Path(__file__).parent.parent / "docs" / "methods.md"
# Of those that need arguments, one example each.
ARGUMENTS = {
    "polynomial": "polynomial(2)",
    "zero_terminal_snr": "zero_terminal_snr(ddpm_linear)",
    "shifted_cosine": "shifted_cosine(64, 256)",
    "interpolated_cosine": "interpolated_cosine(32, 256, 256)",
    "shifted": "shifted(linear, 3)",
}
PATHS = {name: ARGUMENTS.get(name, name) for name in INTERPOLANTS}
TIMES = torch.tensor([0.05, 0.3, 0.7, 0.95])
DENSITY = {"table": {"t": [0, 0.4, 1], "pdf": [0.5, 2, 1]}}

HEAD = """\
# Methods

Written by `scripts/method_table.py` from the code; do not edit. `flowtempo recipes` lists the recipes and
`flowtempo recipes NAME` prints one; `flowtempo train EXPERIMENT NAME --run FOLDER` uses it.

## What each method supports

Every recipe was built with every interpolant and prediction in place of its own; "all" means that all of the
paths and predictions below work. *Objective*: "as it is" is the mean of the prediction's loss over uniform t;
"kept" estimates that mean with importance weights; "moved" optimises something else (other times, weights or
terms).

"""


def works(config: TrainConfig, path: str, prediction: str) -> bool:
    """Whether the method can be trained with a path and a prediction: it builds and its loss is finite."""
    objective = dataclasses.replace(config.objective, interpolant=path, prediction=prediction)
    try:
        check(dataclasses.replace(config, objective=objective))
        built = objective.build()
        zeros, ones = torch.zeros(4, 1, 2, 2), torch.ones(4, 1, 2, 2)
        return bool(built.loss(zeros, ones, ones, TIMES).total.isfinite().all())
    except UserError:
        return False


def names(found: list[str], known: Mapping[str, Any] | tuple[str, ...]) -> str:
    """The names, or "all", or "all but" the missing ones if these are few."""
    missing = [name for name in known if name not in found]
    if not missing:
        return "all"
    if len(missing) < len(found):
        return f"all but {', '.join(missing)}"
    return ", ".join(found)


def row(recipe: recipes.Recipe) -> list[str]:
    """A line of the first table."""
    config = config_from_recipes(["digits", recipe.name])
    if recipe.name == "vr-online":
        config = dataclasses.replace(config, probe_every=2)
    own = config.objective
    times = config.timesteps
    paths = [name for name, path in PATHS.items() if works(config, path, own.prediction)]
    predictions = [name for name in PREDICTIONS if works(config, own.interpolant, name)]
    kept = (times.density or times.adaptive or times.curriculum) and not times.moves_objective
    moved = (
        times.moves_objective
        or times.target != "uniform"
        or own.weighting is not None
        or own.learned_uncertainty
        or own.direction > 0
        or own.coupling is not None
    )
    following = times.adaptive or times.curriculum
    return [
        f"`{recipe.name}`",
        names(paths, PATHS),
        names(predictions, PREDICTIONS),
        "steps of its path" if isinstance(interpolant(own.interpolant), Discrete) else "continuous",
        "no" if following is None else f"`{following}`",
        "kept" if kept else "moved" if moved else "as it is",
    ]


def blocks(found: Mapping[str, Callable[..., Any]]) -> list[list[str]]:
    """Name with parameters, and the first line of the documentation."""
    rows = []
    for name, build in found.items():
        described = inspect.getdoc(Tabulated if name == "table" else build) or ""
        parameters = ", ".join(
            parameter.name
            if parameter.default is parameter.empty
            else f"{parameter.name}={shown(parameter.default)}"
            for parameter in inspect.signature(build).parameters.values()
        )
        form = f"{name}({parameters})" if parameters else name
        rows.append([f"`{form}`", described.splitlines()[0].replace("|", "\\|")])
    return rows


def shown(value: Any) -> str:
    """A default as text."""
    return f"{value:g}" if isinstance(value, (int, float)) else str(value)


def table(columns: list[str], rows: list[list[str]]) -> str:
    """A Markdown table."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def page() -> str:
    """The whole page."""
    methods = [recipe for recipe in recipes.shipped() if recipe.is_method]
    there = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        # vr-paper and vr-bracket read what `flowtempo design` would have written.
        (Path(folder) / "density.json").write_text(json.dumps(DENSITY), encoding="utf-8")
        os.chdir(folder)
        try:
            rows = [row(recipe) for recipe in methods]
        finally:
            os.chdir(there)
    columns = ["method", "interpolants", "predictions", "time", "changes over the run", "objective"]
    text = HEAD + table(columns, rows)
    for title, found in (
        ("Interpolants", INTERPOLANTS),
        ("Densities", DENSITIES),
        ("Weightings", WEIGHTINGS),
        ("Densities that follow what training measures", ADAPTATIONS),
        ("Densities that change over the run", CURRICULA),
        ("Targets over several images", TARGETS),
        ("Couplings of noise and images", COUPLINGS),
    ):
        text += f"\n## {title}\n\n" + table(["form", "what it is"], blocks(found))
    return text


if __name__ == "__main__":
    OUTPUT.write_text(page(), encoding="utf-8")
    print(OUTPUT)
