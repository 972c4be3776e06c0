"""The text form of interpolants: `linear`, `variance_preserving(0.1, 20)`, ..."""

from __future__ import annotations

from collections.abc import Callable

from flowtempo.forms import Forms
from flowtempo.interpolants.base import Interpolant
from flowtempo.interpolants.diffusion import VariancePreserving
from flowtempo.interpolants.flow import Linear, Trigonometric

INTERPOLANTS: dict[str, Callable[..., Interpolant]] = {
    "linear": Linear,
    "trigonometric": Trigonometric,
    "variance_preserving": VariancePreserving,
}
"""Names that `interpolant` knows and what they build."""

FORMS: Forms[Interpolant] = Forms("interpolant", INTERPOLANTS, "'linear' or 'variance_preserving(0.1, 20)'")


def interpolant(text: str) -> Interpolant:
    """Read an interpolant from its text form.

    Args:
        text: A name, or a call of a name with its constants, positional or by keyword.

    Raises:
        UserError: If the text has another form, a name is unknown, or an argument is wrong.
    """
    return FORMS.parse(text)
