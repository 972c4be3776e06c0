"""Backbones: forward(x, t, y) with t = 0 at the noise and t = 1 at the data."""

from flowtempo.models.config import SIZES, ModelConfig, build
from flowtempo.models.scaled import UnitInputSiT
from flowtempo.models.sit import SiT

__all__ = ["SIZES", "ModelConfig", "SiT", "UnitInputSiT", "build"]
