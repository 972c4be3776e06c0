"""The text form of densities: `logit_normal(-0.75, 1)`, `mixture(table('density.json'), 0.1)`, ..."""

from __future__ import annotations

from collections.abc import Callable

from flowtempo import forms
from flowtempo.densities.base import Density
from flowtempo.densities.closed import LogitNormal, Uniform
from flowtempo.densities.composed import Mixture, Truncated
from flowtempo.densities.table import Tabulated


def _table(path: str) -> Density:
    return Tabulated.load(path)


DENSITIES: dict[str, Callable[..., Density]] = {
    "uniform": Uniform,
    "logit_normal": LogitNormal,
    "mixture": Mixture,
    "truncated": Truncated,
    "table": _table,
}
"""Names that `parse` knows and what they build."""

_FORMS = forms.Forms(
    "density",
    DENSITIES,
    "'uniform', 'logit_normal(-0.75, 1)' or \"mixture(table('density.json'), 0.1)\"",
    {"base": None, "path": forms.path},
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
    return _FORMS.parse(text)
