"""Everything that changes the value of a metric, kept beside it."""

from __future__ import annotations

import platform
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import numpy as np
import torch

import flowtempo
from flowtempo.errors import UserError

ROUNDING = "uint8 of (x + 1) 127.5, half to even, clipped to 0..255"

_KINDS: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "int": (int,),
    "int | None": (int, type(None)),
    "float": (int, float),
    "dict[str, str]": (dict,),
}


def software_versions() -> dict[str, str]:
    """Versions of what computes: flowtempo, Python, torch, numpy."""
    return {
        "flowtempo": flowtempo.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
    }


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """How generated images were made.

    Attributes:
        solver: For example `heun`.
        steps: Intervals of the solver; None for an adaptive one.
        nfe: Function evaluations per image.
        guidance: Classifier-free guidance scale; 1 is the conditional model.
        ema: Track of the weights, for example `raw` or `ema`.
        seed: Of the noise.
        checkpoint: Which weights, for example `step-00001000`.
    """

    solver: str
    steps: int | None
    nfe: int
    guidance: float
    ema: str
    seed: int
    checkpoint: str


@dataclass(frozen=True, kw_only=True)
class Card(Provenance):
    """How a metric came about. Two values are comparable only if their cards agree.

    Attributes, beside those of `Provenance`:
        features: Name of the feature network.
        features_checksum: SHA-256 of its weights.
        dim: Number of features.
        samples: Number of generated images.
        reference: Number of reference images.
        reference_name: Name of the reference data.
        reference_fingerprint: Fingerprint of the reference data, as its data set gives it.
        resize: How images were brought to the size of the feature network.
        rounding: How floats became pixels.
        versions: Of the software that computed the metric.
    """

    features: str
    features_checksum: str
    dim: int
    samples: int
    reference: int
    reference_name: str
    reference_fingerprint: str
    resize: str = "none"
    rounding: str = ROUNDING
    versions: dict[str, str] = field(default_factory=software_versions)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Card:
        """The inverse of `to_dict`.

        Raises:
            UserError: If a field is missing, unknown or of the wrong kind.
        """
        if not isinstance(values, dict):
            raise UserError(f"not an evaluation record: card must be an object, not {type(values).__name__}")
        known = {item.name for item in fields(cls)}
        if wrong := sorted(known ^ set(values)):
            raise UserError(f"card: missing or unknown: {', '.join(wrong)}")
        for item in fields(cls):
            wanted = _KINDS[str(item.type)]
            value = values[item.name]
            if not isinstance(value, wanted) or isinstance(value, bool):
                raise UserError(f"card: {item.name} must be {item.type}, not {type(value).__name__}")
        return cls(**values)
