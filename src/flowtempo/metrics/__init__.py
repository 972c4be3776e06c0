"""How far generated images are from real ones, always with the card that says how it was measured."""

from flowtempo.metrics.card import Card, Provenance
from flowtempo.metrics.evaluate import Evaluation, Reference, evaluate

__all__ = ["Card", "Evaluation", "Provenance", "Reference", "evaluate"]
