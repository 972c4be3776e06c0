"""The text form of densities: `logit_normal(-0.75, 1)`, `mixture(table('density.json'), 0.1)`, ..."""

from __future__ import annotations

from collections.abc import Callable

from flowtempo import forms
from flowtempo.densities.base import Density
from flowtempo.densities.beta import Beta
from flowtempo.densities.closed import CosMap, LogitNormal, Mode, Uniform
from flowtempo.densities.composed import Blend, Mixture, Truncated
from flowtempo.densities.normal import Normal
from flowtempo.densities.power import Power
from flowtempo.densities.shifted import Shifted
from flowtempo.densities.sigma import EDM
from flowtempo.densities.steps import Piecewise, Speed
from flowtempo.densities.table import Tabulated
from flowtempo.interpolants import FORMS as INTERPOLANT_FORMS


def _table(path: str) -> Density:
    return Tabulated.load(path)


DENSITIES: dict[str, Callable[..., Density]] = {
    "uniform": Uniform,
    "logit_normal": LogitNormal,
    "mode": Mode,
    "cosmap": CosMap,
    "edm": EDM,
    "beta": Beta,
    "normal": Normal,
    "piecewise": Piecewise,
    "speed": Speed,
    "table": _table,
    "mixture": Mixture,
    "blend": Blend,
    "truncated": Truncated,
    "shifted": Shifted,
    "power": Power,
}
"""Names that `parse` knows and what they build."""

FORMS: forms.Forms[Density] = forms.Forms(
    "density",
    DENSITIES,
    "'uniform', 'logit_normal(-0.75, 1)' or \"mixture(table('density.json'), 0.1)\"",
    {
        "base": None,
        "first": None,
        "second": None,
        "path": forms.path,
        "edges": forms.numbers,
        "masses": forms.numbers,
        "interpolant": INTERPOLANT_FORMS.read,
    },
)


def parse(text: str) -> Density:
    """Read a density from its text form.

    Args:
        text: A name, a call of a name with numbers, densities, or a quoted path, positional or by keyword,
            or a bare path that ends in `.json`.

    Returns:
        The density; `parse(str(density)) == density`.

    Raises:
        UserError: If the text has another form, a name is unknown, or an argument is wrong.
    """
    if isinstance(text, str) and text.strip().endswith(".json"):
        return Tabulated.load(text.strip())
    return FORMS.parse(text)
