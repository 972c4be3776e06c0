"""Compare generated images with real ones."""

from __future__ import annotations

import json
import os
import warnings
from dataclasses import asdict, dataclass

import numpy as np

from flowtempo.errors import UserError
from flowtempo.files import atomic_write, read_json
from flowtempo.metrics import frechet
from flowtempo.metrics.card import Card, Provenance
from flowtempo.metrics.features import FeatureNetwork

SCHEMA = 1


@dataclass(frozen=True)
class Reference:
    """The real images as the metrics need them: measure once, compare many times.

    Attributes:
        statistics: Moments of their features.
        features: Name of the feature network.
        checksum: Of its weights.
        name: Of the data.
        fingerprint: Of the data.
    """

    statistics: frechet.Statistics
    features: str
    checksum: str
    name: str
    fingerprint: str

    @classmethod
    def measure(
        cls, images: np.ndarray, features: FeatureNetwork, *, name: str, fingerprint: str
    ) -> Reference:
        """Features and their statistics in one streaming pass.

        Args:
            images: (N, C, H, W) uint8, N >= 2.
            features: The feature network.
            name: Of the data, for the card.
            fingerprint: Of the data, for the card.

        Raises:
            UserError: If there are fewer than two images, or the network does not take them.
        """
        if len(images) < 2:
            raise UserError(f"{name}: a reference needs 2 images or more, got {len(images)}")
        statistics = frechet.Statistics.of(features.stream(images))
        return cls(statistics, features.name, features.checksum, name, fingerprint)


@dataclass(frozen=True)
class Evaluation:
    """A Frechet distance with its uncertainty and its card.

    Attributes:
        step: Optimizer step of the weights.
        frechet: Frechet distance (squared, as the field reports it), >= 0.
        stderr: Jackknife standard error due to the finite number of samples, the reference held fixed.
        card: How it was measured.
    """

    step: int
    frechet: float
    stderr: float
    card: Card

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write JSON, atomically."""
        record = {
            "schema": SCHEMA,
            "step": self.step,
            "frechet": self.frechet,
            "stderr": self.stderr,
            "card": self.card.to_dict(),
        }
        with atomic_write(path) as file:
            json.dump(record, file, indent=2, allow_nan=False)
            file.write("\n")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Evaluation:
        """Read what `save` wrote.

        Raises:
            UserError: If the file is missing, not such a record, or of another schema.
        """
        record = read_json(path, "an evaluation record")
        try:
            if record["schema"] != SCHEMA:
                raise UserError(f"{path}: evaluation schema {record['schema']}; this version reads {SCHEMA}")
            card = Card.from_dict(record["card"])
            return cls(int(record["step"]), float(record["frechet"]), float(record["stderr"]), card)
        except UserError as error:
            raise UserError(f"{path}: {str(error).removeprefix(f'{path}: ')}") from error
        except KeyError as error:
            raise UserError(f"{path}: not an evaluation record: it has no {error}") from error
        except (ValueError, TypeError, OverflowError) as error:
            raise UserError(
                f"{path}: not an evaluation record: a value is of the wrong kind or too large"
            ) from error


def evaluate(
    samples: np.ndarray,
    reference: Reference,
    features: FeatureNetwork,
    provenance: Provenance,
    *,
    step: int,
) -> Evaluation:
    """Frechet distance of generated images to a reference.

    Args:
        samples: (N, C, H, W) uint8, N >= 4.
        reference: The real images, measured with the same features.
        features: The feature network.
        provenance: How the samples were made, for the card.
        step: Optimizer step of the weights.

    Warns:
        UserWarning: If there are fewer samples or reference images than features: the covariance is then
            singular and the distance mostly bias.

    Raises:
        UserError: If there are fewer than four samples, the network does not take them, or the reference
            was measured with other features.
    """
    if len(samples) < 4:
        raise UserError(f"a Frechet distance needs 4 generated images or more, got {len(samples)}")
    if (reference.features, reference.checksum) != (features.name, features.checksum):
        raise UserError(
            f"reference {reference.name} was measured with other features ({reference.features} "
            f"{reference.checksum[:12]}) than the samples ({features.name} {features.checksum[:12]})"
        )
    vectors = features(samples)
    fewest = min(len(samples), reference.statistics.count)
    if fewest < features.dim:
        warnings.warn(
            f"Frechet distance from {fewest} images with {features.dim} features: the covariance is "
            "singular and the value mostly bias; use more images",
            stacklevel=2,
        )
    result = frechet.estimate(vectors, reference.statistics)
    card = Card(
        features=features.name,
        features_checksum=features.checksum,
        dim=features.dim,
        samples=len(samples),
        reference=reference.statistics.count,
        reference_name=reference.name,
        reference_fingerprint=reference.fingerprint,
        **asdict(provenance),
    )
    return Evaluation(step, result.value, result.stderr, card)
