"""Images and latents as in-memory or memory-mapped arrays, and cached text embeddings that go with them."""

from flowtempo.data.dataset import ArrayData
from flowtempo.data.embeddings import load_embeddings
from flowtempo.data.sources import DataConfig, load, load_buckets

__all__ = ["ArrayData", "DataConfig", "load", "load_buckets", "load_embeddings"]
