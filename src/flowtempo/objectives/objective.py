"""The objective: prediction type and loss terms on an interpolant."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from torch import Tensor

from flowtempo.errors import UserError
from flowtempo.interpolants import Interpolant, per_sample
from flowtempo.objectives.losses import direction, mse, weighted
from flowtempo.objectives.weightings import Weighting
from flowtempo.predictions import Prediction, check_prediction, target


@dataclass(frozen=True)
class Losses:
    """Losses of a batch, one value per sample.

    Attributes:
        total: (B,), the sum of the terms by their coefficients, times the weighting: what is optimised.
        terms: Each term by name, (B,), before its coefficient.
    """

    total: Tensor
    terms: dict[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Objective:
    """Mean squared error of the prediction, plus FasterDiT's direction loss of the velocity.

    The score is compared as sigma x score, which is finite at every t (SiT, arXiv 2401.08740, equation 10).

    Attributes:
        interpolant: The path between noise and data.
        prediction: What the network's output stands for.
        direction: Coefficient of the direction loss, 0 for none; needs prediction "velocity".
        weighting: Weight of the sum of both over the noise axis; None is 1 on the loss of this prediction.

    Raises:
        UserError: If the prediction is unknown, or the coefficient is negative, infinite or without effect.
    """

    interpolant: Interpolant
    prediction: Prediction = "velocity"
    direction: float = 0.0
    weighting: Weighting | None = None

    def __post_init__(self) -> None:
        check_prediction(self.prediction)
        if not 0 <= self.direction < math.inf:
            raise UserError(f"direction = {self.direction} must be 0 or a positive number")
        if self.direction > 0 and self.prediction != "velocity":
            raise UserError(
                f"direction = {self.direction} compares velocities and has no effect on prediction"
                f" {self.prediction!r}: use prediction 'velocity' or direction 0"
            )

    def loss(self, output: Tensor, x1: Tensor, x0: Tensor, t: Tensor) -> Losses:
        """Compare a network's output with its target.

        Args:
            output: The network at (x_t, t), (B, C, ...).
            x1: Data, the shape of `output`.
            x0: Noise, the shape of `output`.
            t: Times, (B,).

        Returns:
            Losses of shape (B,), float32 at least, never reduced over samples.

        Raises:
            ValueError: If a shape does not fit.
        """
        if self.prediction == "score":
            # sigma x score = -x0 without the division that has a pole at sigma = 0.
            wanted = -target("noise", x1, x0, t, self.interpolant)
            output = per_sample(self.interpolant.sigma(t), output) * output
        else:
            wanted = target(self.prediction, x1, x0, t, self.interpolant)
        squared = mse(output, wanted)
        total, terms = squared, {"mse": squared}
        if self.direction > 0:
            angle = direction(output, wanted)
            total, terms = squared + self.direction * angle, {**terms, "direction": angle}
        if self.weighting is not None:
            total = weighted(total, self.weighting.weight(self.prediction, self.interpolant, t).to(total))
        return Losses(total, terms)
