"""A density as plain numbers, CSV or JSON, for any other trainer."""

from __future__ import annotations

import csv
import io
import json
from os import PathLike, fspath
from pathlib import Path

import torch

from flowtempo.design import Distance
from flowtempo.errors import UserError
from flowtempo.files import atomic_write
from flowtempo.interop.export import Export, Options, Table, Target
from flowtempo.interop.subject import Subject
from flowtempo.timesteps.drawing import weights

_ROWS = 257


def _export(subject: Subject, options: Options) -> Export:
    rows = options.steps or _ROWS
    if rows < 2:
        raise UserError(f"steps = {rows} must be at least 2")
    grid = torch.linspace(0, 1, rows, dtype=torch.float64)
    density = subject.density
    table = {
        "t": grid.tolist(),
        "pdf": density.pdf(grid).tolist(),
        "cdf": density.cdf(grid).tolist(),
        "quantile": density.quantile(grid).tolist(),
    }
    if subject.target is not None:
        # 0 / 0 is no weight: neither density draws there.
        table["weight"] = (
            weights(subject.target, density, grid).nan_to_num(nan=0.0, posinf=torch.inf).tolist()
        )
    return Export(
        "t = 1 is data; where t = 1 is noise, read 1 - t",
        "t = quantile(u) for a uniform u: the column quantile holds it at u = the column t",
        density,
        Distance(0.0, 0.0),
        notes=() if subject.target is None else ("multiply each loss by the column weight at its t",),
        table=table,
    )


def save_table(table: Table, path: str | PathLike[str]) -> None:
    """Write columns to a file: `.csv`, or `.json` as an object of lists.

    Raises:
        UserError: If the name ends otherwise, a value is infinite and JSON cannot hold it, or the file cannot
            be written.
    """
    name = fspath(path)
    kind = Path(name).suffix.lower()
    if kind == ".csv":
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(table)
        writer.writerows(zip(*table.values(), strict=True))
        content = text.getvalue()
    elif kind == ".json":
        try:
            content = json.dumps(dict(table), allow_nan=False) + "\n"
        except ValueError as error:
            raise UserError(f"{name}: JSON holds no infinite pdf: write a .csv file") from error
    else:
        raise UserError(f"{name}: a table is written as .csv or .json: name such a file")
    try:
        with atomic_write(name, "w") as file:
            file.write(content)
    except OSError as error:
        raise UserError(f"{name}: cannot be written ({error.strerror})") from error


TABLE = Target("a table of t, pdf, CDF and quantiles", _export, frozenset({"steps"}), "t, pdf, cdf, quantile")
