"""What every weighting is, and how it is carried over to other predictions."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import ClassVar

from torch import Tensor
from torch.nn.functional import logsigmoid

from flowtempo.errors import UserError
from flowtempo.forms import number
from flowtempo.interpolants import Interpolant
from flowtempo.predictions import Prediction, log_error_factor

# Times are kept this far inside (0, 1): weights there are the limits at the ends to all digits where these
# are finite, and their logarithms stay so where they are not.
_FIRST, _LAST = 1e-150, 1 - 2**-53


class Weighting(ABC):
    """A weight of the loss as a function of time on a path.

    Weights at t = 0 and t = 1 are the limits where these are finite, and otherwise those of a time nearby.
    Where the log-SNR of a path stands still (the clipped ends of Chen's) no weight on the velocity loss is
    right.
    """

    name: ClassVar[str]
    stated_on: ClassVar[Prediction] = "data"
    """The prediction whose squared error `_log_weight` multiplies."""

    def weight(self, prediction: Prediction, interpolant: Interpolant, t: Tensor) -> Tensor:
        """The weight on the loss that `Objective` computes for a prediction.

        Args:
            prediction: What the network predicts. The score's loss is |sigma score + x0|^2, the noise's.
            interpolant: The path.
            t: Times, any shape.

        Returns:
            The shape of `t`, float64, not negative.

        Raises:
            UserError: If the prediction is unknown.
        """
        t = t.double().clamp(_FIRST, _LAST)
        weight = self._log_weight(interpolant, t)
        loss: Prediction = "noise" if prediction == "score" else prediction
        if loss != self.stated_on:
            weight = weight + log_error_factor(self.stated_on, interpolant, t)
            weight = weight - log_error_factor(loss, interpolant, t)
        return weight.exp()

    def on_data(self, interpolant: Interpolant, t: Tensor) -> Tensor:
        """The equivalent weight on the squared error of the data prediction; as `weight` otherwise."""
        return self.weight("data", interpolant, t)

    @abstractmethod
    def _log_weight(self, interpolant: Interpolant, t: Tensor) -> Tensor:
        """Logarithm of the weight as stated, float64; t is inside (0, 1)."""

    def __str__(self) -> str:
        fields = [number(value) for value in vars(self).values()]
        return f"{self.name}({', '.join(fields)})" if fields else self.name


def softplus(x: Tensor) -> Tensor:
    """log(1 + e^x) to all digits; torch's own stops at x = 20."""
    return -logsigmoid(-x)


def check_positive(name: str, **values: float) -> None:
    """Raise `UserError` if a value is not a finite number above 0."""
    for key, value in values.items():
        if not 0 < value < math.inf:
            raise UserError(f"{name}: {key} = {value} must be a finite number above 0")
