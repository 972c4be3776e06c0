"""Model names and sizes, and the one function that builds a model for given data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from flowtempo.errors import UserError
from flowtempo.interpolants import Interpolant
from flowtempo.models.scaled import UnitInputSiT
from flowtempo.models.sit import SiT


@dataclass(frozen=True)
class Size:
    """Depth, token width and attention heads of a transformer."""

    depth: int
    dim: int
    heads: int


# S to XL: the official table of DiT and SiT. micro and tiny: about 0.3M and 1.2M parameters, for one laptop.
SIZES = {
    "micro": Size(depth=4, dim=64, heads=2),
    "tiny": Size(depth=4, dim=128, heads=4),
    "S": Size(depth=12, dim=384, heads=6),
    "B": Size(depth=12, dim=768, heads=12),
    "L": Size(depth=24, dim=1024, heads=16),
    "XL": Size(depth=28, dim=1152, heads=16),
}
PATCHES = (2, 4, 8)


@dataclass(frozen=True)
class ModelConfig:
    """The network.

    Args:
        name: The backbone; `sit` is a SiT (a DiT that takes t in [0, 1]).
        size: Size and patch as `SIZE/PATCH`: micro, tiny, S, B, L or XL, and 2, 4 or 8.
        channels: Image channels the model is meant for; checked against the data. null takes the data's.
        unit_input: Divide the noisy image by its standard deviation at t before the network sees it, for
            paths and data on which that is far from 1.
    """

    name: Literal["sit"] = "sit"
    size: str = "tiny/2"
    channels: int | None = None
    unit_input: bool = False


def build(
    config: ModelConfig,
    shape: tuple[int, int, int],
    num_classes: int,
    *,
    seed: int = 0,
    interpolant: Interpolant | None = None,
    data_std: float | None = None,
) -> SiT:
    """Build and initialise the model for images of one shape.

    Args:
        config: What to build.
        shape: (C, H, W) of the images.
        num_classes: Classes of the data; 0 for an unconditional model.
        seed: Seed of the initial weights. The global random state is left as it was.
        interpolant: The path that the model is for; needed with `unit_input` and not looked at without.
        data_std: Standard deviation of the training images in model units; needed as `interpolant` is.

    Raises:
        UserError: An unknown size, or one that does not fit the images; `unit_input` on constant images.
        ValueError: `unit_input` without `interpolant` and `data_std`.
    """
    if config.channels is not None and config.channels != shape[0]:
        raise UserError(
            f"model.channels is {config.channels} but the data has {shape[0]}-channel images of shape "
            f"{shape}: change model.channels (null takes the data's) or the data"
        )
    size, patch = _parse_size(config.size)
    settings = {
        "patch": patch,
        "depth": size.depth,
        "dim": size.dim,
        "heads": size.heads,
        "num_classes": num_classes,
    }
    with torch.random.fork_rng(devices=[]):
        torch.random.default_generator.manual_seed(seed)
        if not config.unit_input:
            return SiT(shape, **settings)
        if interpolant is None or data_std is None:
            raise ValueError("unit_input needs the interpolant and the standard deviation of the data")
        if not data_std > 0:
            raise UserError("model.unit_input is on, but the images are constant: leave it out")
        return UnitInputSiT(shape, interpolant=interpolant, data_std=data_std, **settings)


def _parse_size(text: str) -> tuple[Size, int]:
    name, slash, patch = text.partition("/")
    if not slash or name not in SIZES or patch not in {str(known) for known in PATCHES}:
        raise UserError(
            f"unknown model size {text!r}; known sizes are {', '.join(SIZES)} with a patch of "
            f"{', '.join(map(str, PATCHES))}, as in 'tiny/2'"
        )
    return SIZES[name], int(patch)
