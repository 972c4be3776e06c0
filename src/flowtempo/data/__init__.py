"""Images and latents as arrays, their text embeddings, and which noise they are paired with."""

from flowtempo.data.couplings import COUPLINGS, OptimalTransport, OptimalTransportByLabel, coupling
from flowtempo.data.dataset import ArrayData
from flowtempo.data.embeddings import load_embeddings
from flowtempo.data.scaling import Scaling, whole_std
from flowtempo.data.sources import DataConfig, load, load_buckets

__all__ = [
    "COUPLINGS",
    "ArrayData",
    "DataConfig",
    "OptimalTransport",
    "OptimalTransportByLabel",
    "Scaling",
    "coupling",
    "load",
    "load_buckets",
    "load_embeddings",
    "whole_std",
]
