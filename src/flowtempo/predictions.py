"""What a network predicts, and one table that converts between the five kinds.

With x_t = alpha x1 + sigma x0, W = alpha' sigma - alpha sigma':

| prediction | definition | error in terms of the data error |
|---|---|---|
| velocity | u = alpha' x1 + sigma' x0 | (W / sigma)^2 |
| noise | x0 | (alpha / sigma)^2 |
| data | x1 | 1 |
| score | -x0 / sigma | (alpha / sigma^2)^2 |
| v | alpha x0 - sigma x1 | ((alpha^2 + sigma^2) / sigma)^2 |

Velocity and score: Ma et al., "SiT" (arXiv 2401.08740), section 2. v: Salimans & Ho (arXiv
2202.00512), appendix D, here for any alpha and sigma.
"""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

from flowtempo.errors import UserError
from flowtempo.interpolants import Interpolant, per_sample

__all__ = [
    "PREDICTIONS",
    "Prediction",
    "check_prediction",
    "convert",
    "error_factor",
    "log_error_factor",
    "scaled_error_factor",
    "target",
]

Prediction = Literal["velocity", "noise", "data", "score", "v"]
PREDICTIONS: tuple[Prediction, ...] = get_args(Prediction)


def check_prediction(name: str) -> None:
    """Raise `UserError` if `name` is not one of `PREDICTIONS`."""
    if name not in PREDICTIONS:
        raise UserError(f"unknown prediction {name!r}: use one of {', '.join(PREDICTIONS)}")


def target(prediction: Prediction, x1: Tensor, x0: Tensor, t: Tensor, interpolant: Interpolant) -> Tensor:
    """Return what a network with this prediction is trained towards.

    Args:
        prediction: One of `PREDICTIONS`.
        x1: Data, (B, ...).
        x0: Noise, the shape of `x1`.
        t: Times, (B,).
        interpolant: The path. The score has a pole at sigma = 0.

    Returns:
        (B, ...) in the dtype of the batch, float32 at least.

    Raises:
        UserError: If the prediction is unknown.
        ValueError: If the shapes do not fit.
    """
    check_prediction(prediction)
    _check(x1, x0, t)
    wanted = _assemble(x1, x0, t, interpolant, prediction)
    return wanted.to(torch.promote_types(wanted.dtype, torch.float32))


def convert(
    value: Tensor, x_t: Tensor, t: Tensor, interpolant: Interpolant, *, source: Prediction, to: Prediction
) -> Tensor:
    """Turn one prediction into another.

    Poles are those of the formulas: from noise or score at alpha = 0 (the noisy end, nothing is known of the
    data) and from data at sigma = 0 (the data end), and to score at sigma = 0. Between velocity and v, and
    from either to data or noise, there is none, except where the interpolant says so: a velocity that is
    itself infinite (most variance-preserving paths at sigma = 0), and one that is 0 where the path stands
    still, which says nothing of the data. Near a pole rounding errors grow as 1 / alpha or 1 / sigma.

    Args:
        value: The prediction, (B, ...).
        x_t: The point that it was made at, the shape of `value`.
        t: Times, (B,).
        interpolant: The path.
        source: What `value` is.
        to: What is wanted.

    Returns:
        (B, ...) in the dtype of the batch, float32 at least; `value` itself if `source == to`.

    Raises:
        UserError: If a prediction is unknown.
        ValueError: If the shapes do not fit.
    """
    check_prediction(source)
    check_prediction(to)
    _check(value, x_t, t)
    if source == to:
        return value
    # Only what is needed is computed, so that a pole of the other half does not spoil it.
    x1 = value if to in ("noise", "score") else _data(value, x_t, t, interpolant, source)
    x0 = value if to == "data" else _noise(value, x_t, t, interpolant, source)
    return _assemble(x1, x0, t, interpolant, to)


def error_factor(prediction: Prediction, interpolant: Interpolant, t: Tensor) -> Tensor:
    """Return f with |error of this prediction|^2 = f |error of the data prediction|^2 at the same x_t.

    The same f turns the posterior variance of the data, tr Cov(x1 | x_t), into that of the target.
    At sigma = 0 it is +inf for all but data, because the data error vanishes there; at alpha = 0 it is 0 for
    noise and score.

    Args:
        prediction: One of `PREDICTIONS`.
        interpolant: The path.
        t: Times, any shape.

    Returns:
        The shape of `t`, float32 at least.

    Raises:
        UserError: If the prediction is unknown.
    """
    if prediction == "data":
        return interpolant.sigma(t).new_ones(t.shape)
    return scaled_error_factor(prediction, interpolant, t) / interpolant.sigma(t) ** 2


def scaled_error_factor(prediction: Prediction, interpolant: Interpolant, t: Tensor) -> Tensor:
    """sigma^2 times `error_factor`, which has no pole at sigma = 0 but the score's and the VP velocity's.

    Args:
        prediction: One of `PREDICTIONS`.
        interpolant: The path.
        t: Times, any shape.

    Returns:
        The shape of `t`, float32 at least.

    Raises:
        UserError: If the prediction is unknown.
    """
    check_prediction(prediction)
    alpha, sigma = interpolant.alpha(t), interpolant.sigma(t)
    if prediction == "data":
        return sigma**2
    if prediction == "noise":
        return alpha**2
    if prediction == "score":
        return (alpha / sigma) ** 2
    if prediction == "v":
        return (alpha**2 + sigma**2) ** 2
    return interpolant.wronskian(t) ** 2


def log_error_factor(prediction: Prediction, interpolant: Interpolant, t: Tensor) -> Tensor:
    """Logarithm of `error_factor`, which neither over- nor underflows near the ends.

    Args:
        prediction: One of `PREDICTIONS`.
        interpolant: The path.
        t: Times inside (0, 1), any shape.

    Returns:
        The shape of `t`, float32 at least.

    Raises:
        UserError: If the prediction is unknown.
    """
    check_prediction(prediction)
    log_snr, log_sigma = interpolant.log_snr(t), interpolant.sigma(t).log()
    if prediction == "data":
        return torch.zeros_like(log_snr)
    if prediction == "noise":
        return log_snr
    if prediction == "score":
        return log_snr - 2 * log_sigma
    if prediction == "v":
        return 2 * (log_sigma - torch.nn.functional.logsigmoid(-log_snr))
    # W = log_snr' alpha sigma / 2
    return 2 * ((interpolant.d_log_snr(t) / 2).log() + log_snr / 2 + log_sigma)


def _data(value: Tensor, x_t: Tensor, t: Tensor, interpolant: Interpolant, source: Prediction) -> Tensor:
    if source == "data":
        return value
    if source == "velocity":
        p, q = interpolant.velocity_to_data(t)
        return per_sample(p, value) * value + per_sample(q, x_t) * x_t
    alpha, sigma = per_sample(interpolant.alpha(t), x_t), per_sample(interpolant.sigma(t), x_t)
    if source == "noise":
        return (x_t - sigma * value) / alpha
    if source == "score":
        return (x_t + sigma**2 * value) / alpha
    return (alpha * x_t - sigma * value) / (alpha**2 + sigma**2)


def _noise(value: Tensor, x_t: Tensor, t: Tensor, interpolant: Interpolant, source: Prediction) -> Tensor:
    if source == "noise":
        return value
    if source == "velocity":
        p, q = interpolant.velocity_to_noise(t)
        return per_sample(p, value) * value + per_sample(q, x_t) * x_t
    alpha, sigma = per_sample(interpolant.alpha(t), x_t), per_sample(interpolant.sigma(t), x_t)
    if source == "data":
        return (x_t - alpha * value) / sigma
    if source == "score":
        return -sigma * value
    return (sigma * x_t + alpha * value) / (alpha**2 + sigma**2)


def _assemble(x1: Tensor, x0: Tensor, t: Tensor, interpolant: Interpolant, to: Prediction) -> Tensor:
    if to == "data":
        return x1
    if to == "noise":
        return x0
    if to == "velocity":
        return interpolant.velocity(x1, x0, t)
    sigma = per_sample(interpolant.sigma(t), x0)
    if to == "score":
        return -x0 / sigma
    return per_sample(interpolant.alpha(t), x0) * x0 - sigma * x1


def _check(first: Tensor, second: Tensor, t: Tensor) -> None:
    if first.shape != second.shape:
        raise ValueError(f"shapes differ: {tuple(first.shape)} and {tuple(second.shape)}")
    per_sample(t, first)
