"""Shifts of the noise level: more noise at every time, as larger images need."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from flowtempo.errors import UserError
from flowtempo.forms import number
from flowtempo.interpolants.base import Interpolant, wide

# Flux: log of the shift at two numbers of tokens, on a line.
_FLUX = ((256, 0.5), (4096, 1.15))


def shift(t: Tensor, s: float | Tensor) -> Tensor:
    """Move a time so that the noise level 1 - t becomes s (1 - t) / (1 + (s - 1) (1 - t)).

    In data-time that is t / (t + s (1 - t)). s > 1 moves towards the noise, s = 1 leaves t alone,
    `shift(., a)` after `shift(., b)` is `shift(., a b)`, and on the linear path log_snr falls by 2 log s
    (Esser et al., arXiv 2403.03206, section 5.3.2, there for the noise level).

    Args:
        t: Times in [0, 1], any shape.
        s: One number above 0, or a tensor of them: a scalar, or one for each time (on a GPU a wrong one
            gives nan, since looking at it would wait for the device).

    Returns:
        The shape and dtype of `t`, float32 at least; exact at t = 0 and t = 1.

    Raises:
        UserError: If a shift is not a finite number above 0.
        ValueError: If the shapes do not fit.
    """
    t = wide(t)
    if isinstance(s, Tensor):
        s = _checked(s, t)
    else:
        check_shift(s)
    return t / (t + s * (1 - t))


@final
@dataclass(frozen=True)
class Shifted(Interpolant):
    """Another path at shifted times: x_t is the base's at `shift(t, s)`, with more noise for a shift s > 1.

    On the linear path log_snr falls by 2 log s at every t (SD3 and Flux). A path is shifted once: shifts
    multiply.

    Attributes:
        base: The path.
        shift: The shift, above 0.

    Raises:
        UserError: If the shift is not a finite number above 0, or the base is shifted already.
    """

    name: ClassVar[str] = "shifted"

    base: Interpolant
    shift: float

    def __post_init__(self) -> None:
        check_shift(self.shift)
        if isinstance(self.base, Shifted):
            raise UserError(
                f"{self.base} is shifted already: for both write shifted({self.base.base},"
                f" {number(self.base.shift * self.shift)}), the product"
            )

    def _moved(self, t: Tensor, rest: Tensor) -> tuple[Tensor, Tensor]:
        """The shifted time and 1 less it, each with all its digits."""
        whole = t + self.shift * rest
        return t / whole, self.shift * rest / whole

    def _speed(self, t: Tensor, rest: Tensor) -> Tensor:
        """Derivative of the shifted time by t."""
        return self.shift / (t + self.shift * rest) ** 2

    def _alpha(self, t: Tensor, rest: Tensor) -> Tensor:
        return self.base._alpha(*self._moved(t, rest))

    def _sigma(self, t: Tensor, rest: Tensor) -> Tensor:
        return self.base._sigma(*self._moved(t, rest))

    def _d_alpha(self, t: Tensor, rest: Tensor) -> Tensor:
        return self._speed(t, rest) * self.base._d_alpha(*self._moved(t, rest))

    def _d_sigma(self, t: Tensor, rest: Tensor) -> Tensor:
        return self._speed(t, rest) * self.base._d_sigma(*self._moved(t, rest))

    def _wronskian(self, t: Tensor, rest: Tensor) -> Tensor:
        return self._speed(t, rest) * self.base._wronskian(*self._moved(t, rest))

    def _log_snr(self, t: Tensor, rest: Tensor) -> Tensor:
        return self.base._log_snr(*self._moved(t, rest))

    def _d_log_snr(self, t: Tensor, rest: Tensor) -> Tensor:
        return self._speed(t, rest) * self.base._d_log_snr(*self._moved(t, rest))

    def time(self, log_snr: Tensor) -> Tensor:
        """The base's time, shifted back; one that the base does not reach keeps its side of [0, 1]."""
        t = self.base.time(log_snr)
        inside = shift(t.clamp(0, 1), 1 / self.shift)
        return inside + (t - t.clamp(0, 1))

    def _velocity_to_data(self, t: Tensor, rest: Tensor) -> tuple[Tensor, Tensor]:
        p, q = self.base._velocity_to_data(*self._moved(t, rest))
        return p / self._speed(t, rest), q

    def _velocity_to_noise(self, t: Tensor, rest: Tensor) -> tuple[Tensor, Tensor]:
        p, q = self.base._velocity_to_noise(*self._moved(t, rest))
        return p / self._speed(t, rest), q


def token_count(height: int | Tensor, width: int | Tensor, downsample: int = 8, patch: int = 2) -> Tensor:
    """Number of tokens of each image, (height / downsample / patch) (width / downsample / patch).

    Args:
        height: Pixels, one number or one per sample, (B,).
        width: The same; the two may differ.
        downsample: How much smaller the autoencoder's latents are, 1 for none.
        patch: Side of the model's patches.

    Returns:
        int64, () or (B,).

    Raises:
        UserError: If a side is not a positive multiple of `downsample * patch`.
        ValueError: If the shapes differ.
    """
    sides = torch.as_tensor(height), torch.as_tensor(width)
    if sides[0].shape != sides[1].shape:
        raise ValueError(f"shapes differ: {tuple(sides[0].shape)} and {tuple(sides[1].shape)}")
    unit = downsample * patch
    for name, side in zip(("height", "width"), sides, strict=True):
        wrong = side[(side <= 0) | (side % unit != 0)]
        if wrong.numel():
            raise UserError(
                f"{name} = {int(wrong[0])} is not a positive multiple of downsample * patch = {unit}:"
                " crop or pad the image"
            )
    return (sides[0] // unit).long() * (sides[1] // unit).long()


def sd3_shift(tokens: float | Tensor, base_tokens: float) -> Tensor:
    """SD3's shift for larger images, sqrt(tokens / base_tokens).

    Args:
        tokens: Tokens of an image, one number or one per sample.
        base_tokens: Tokens of the images whose noise levels suited unshifted times.

    Returns:
        float64, the shape of `tokens`: 2 from 512 to 1024 pixels (Esser et al., arXiv 2403.03206, section
        5.3.2).
    """
    return (torch.as_tensor(tokens, dtype=torch.float64) / base_tokens).sqrt()


def flux_shift(tokens: float | Tensor) -> Tensor:
    """Flux's shift, e^mu with mu linear in the tokens through (256, 0.5) and (4096, 1.15).

    Args:
        tokens: Tokens of an image, one number or one per sample; for Flux (height / 16) (width / 16).

    Returns:
        float64, the shape of `tokens` (black-forest-labs/flux, sampling.py).
    """
    (low, mu_low), (high, mu_high) = _FLUX
    share = (torch.as_tensor(tokens, dtype=torch.float64) - low) / (high - low)
    return (mu_low + share * (mu_high - mu_low)).exp()


def lightningdit_shift(timestep_shift: float) -> float:
    """The shift that stands for LightningDiT's `timestep_shift`, which moves data-time: its inverse.

    There t becomes s t / (1 + (s - 1) t), and 0 stands for no shift: LightningDiT's 0.3 is a shift of 3.33.

    Args:
        timestep_shift: LightningDiT's value, 0 or above.

    Raises:
        UserError: If it is negative or not finite.
    """
    if not 0 <= timestep_shift < math.inf:
        raise UserError(f"timestep_shift = {timestep_shift} must be a finite number: 0 for none, or above")
    return 1 / timestep_shift if timestep_shift else 1.0


def check_shift(s: float) -> None:
    """Raise `UserError` if `s` is not a finite number above 0."""
    if not 0 < s < math.inf:
        raise UserError(f"a shift must be a finite number above 0, not {s}: 1 leaves times as they are")


def _checked(s: Tensor, t: Tensor) -> Tensor:
    if s.ndim and s.shape != t.shape:
        raise ValueError(
            f"expected one shift, or one for each time of shape {tuple(t.shape)}, not {tuple(s.shape)}"
        )
    s = s.to(t.dtype)
    good = (s > 0) & (s < math.inf)
    if s.device.type != "cpu":
        return torch.where(good, s, math.nan)
    if not good.all():
        check_shift(float(s[~good][0]))
    return s
