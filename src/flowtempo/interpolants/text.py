"""The text form of interpolants: `linear`, `variance_preserving(0.1, 20)`, `shifted(linear, 3)`, ..."""

from __future__ import annotations

from collections.abc import Callable

from flowtempo.forms import Forms
from flowtempo.interpolants.base import Interpolant
from flowtempo.interpolants.chen import ChenCosine, ChenSigmoid
from flowtempo.interpolants.cosine import InterpolatedCosine, ShiftedCosine
from flowtempo.interpolants.diffusion import VarianceExploding, VariancePreserving
from flowtempo.interpolants.discrete import DdpmCosine, DdpmLinear, DdpmScaledLinear, ZeroTerminalSnr
from flowtempo.interpolants.flow import Linear, LinearVP, Polynomial, Trigonometric
from flowtempo.interpolants.shifts import Shifted

INTERPOLANTS: dict[str, Callable[..., Interpolant]] = {
    "linear": Linear,
    "trigonometric": Trigonometric,
    "variance_preserving": VariancePreserving,
    "linear_vp": LinearVP,
    "polynomial": Polynomial,
    "variance_exploding": VarianceExploding,
    "ddpm_linear": DdpmLinear,
    "ddpm_scaled_linear": DdpmScaledLinear,
    "ddpm_cosine": DdpmCosine,
    "zero_terminal_snr": ZeroTerminalSnr,
    "shifted_cosine": ShiftedCosine,
    "interpolated_cosine": InterpolatedCosine,
    "chen_cosine": ChenCosine,
    "chen_sigmoid": ChenSigmoid,
    "shifted": Shifted,
}
"""Names that `interpolant` knows and what they build."""

STANDARD: tuple[Interpolant, ...] = (Linear(), Trigonometric(), VariancePreserving())
"""The paths that measured variances are shown on beside the run's own."""

FORMS: Forms[Interpolant] = Forms(
    "interpolant", INTERPOLANTS, "'linear' or 'variance_preserving(0.1, 20)'", {"base": None}
)


def interpolant(text: str) -> Interpolant:
    """Read an interpolant from its text form.

    Args:
        text: A name, or a call of a name with its constants, positional or by keyword; `base` is an
            interpolant. `interpolant(str(path)) == path`.

    Raises:
        UserError: If the text has another form, a name is unknown, or an argument is wrong.
    """
    return FORMS.parse(text)
