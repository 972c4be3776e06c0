"""Latents that kohya's sd-scripts caches on disk: one `.npz` for each image, beside the images.

Format, read at commit 48d368f (library/strategy_*.py): `NAME_WIDTHxHEIGHT_MODEL.npz` (older: `NAME.npz`)
with `latents` for SD and SDXL, or `latents_HxW` for each size that the image was cached at (latent height
and width) for the other models, (C, H, W) float32. Beside them stand `original_size`, `crop_ltrb` and,
optionally, `latents_flipped` and `alpha_mask`. Some models store what the encoder returns and scale it when
they train; that scale is part of the data here, because it moves the noise axis.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from flowtempo.data.arrays import read_members
from flowtempo.data.latents import cache_files, checked
from flowtempo.errors import UserError

_KEY = re.compile(r"latents(_\d+x\d+)?")
_NAME = re.compile(r"_\d+x\d+_(?P<model>[a-z0-9]+)\.npz")
# (shift, scale) by the last part of the file's name: training uses (latent - shift) * scale.
_UNITS = {
    "sd": (0.0, 0.18215),
    "sdxl": (0.0, 0.13025),
    "sd3": (0.0609, 1.5305),
    "hi": (0.0, 0.75289),
    # scaled before they are cached
    "flux": (0.0, 1.0),
    "lumina": (0.0, 1.0),
    "anima": (0.0, 1.0),
}


def read_sd_scripts(
    folder: Path, scale: float | None, progress: Callable[[float], None] | None = None
) -> Iterator[np.ndarray]:
    """Every cached latent below a folder, in the order of the files' names, in the units of training.

    An image that was cached at several sizes gives one latent for each, as it does in training. Flipped
    latents and masks are left out, and so are `.npz` files without latents (cached text).

    Args:
        folder: The folder with the images, searched with its subfolders.
        scale: Factor for the latents; None takes that of the model in the file's name.
        progress: Called with the fraction of the files read.

    Yields:
        (C, H, W) float32.

    Raises:
        UserError: If a file is damaged or holds other than finite latents, the scale is unknown, the
            folder mixes models, or there are no latents.
    """
    models: dict[str, Path] = {}
    files = found = 0
    for _, file in cache_files(folder, ".npz", progress):
        files += 1
        members = read_members(file, _plain_latents)
        if not members:
            continue
        name = _NAME.search(file.name)
        model = name["model"] if name else ""
        models.setdefault(model, file)
        if len(models) > 1:
            one, other = models.values()
            raise UserError(f"{folder}: caches of two models ({one}, {other}): give one folder for each")
        shift, factor = _units(file, model, scale)
        for latent in members.values():
            found += 1
            yield (checked(file, latent) - np.float32(shift)) * np.float32(factor)
    if not found:
        raise UserError(
            f"{folder}: no latents of sd-scripts: looked for arrays named latents or latents_HxW in the "
            f"{files} .npz files in it and below (cache them with --cache_latents_to_disk)"
        )


def _plain_latents(keys: list[str]) -> list[str]:
    return sorted(key for key in keys if _KEY.fullmatch(key))


def _units(file: Path, model: str, scale: float | None) -> tuple[float, float]:
    if model not in _UNITS and scale is None:
        raise UserError(
            f"{file}: its name does not end in _WxH_MODEL.npz for a known MODEL ({', '.join(_UNITS)}), which "
            "would tell the scale: set data.scale (SD 1 and 2: 0.18215, SDXL: 0.13025, scaled already: 1)"
        )
    shift, factor = _UNITS.get(model, (0.0, 1.0))
    return shift, factor if scale is None else scale
