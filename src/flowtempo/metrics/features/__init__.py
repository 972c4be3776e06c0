"""Feature networks by name."""

from flowtempo.metrics.features.network import FeatureNetwork, PackagedNetwork, Pixels, load

__all__ = ["FeatureNetwork", "PackagedNetwork", "Pixels", "load"]
