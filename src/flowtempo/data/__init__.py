"""Data sets as in-memory or memory-mapped arrays: digits, IDX files, NumPy arrays."""

from flowtempo.data.dataset import ArrayData
from flowtempo.data.sources import DataConfig, load

__all__ = ["ArrayData", "DataConfig", "load"]
