"""Transformers of diffusers, called as flowtempo calls a model.

There timesteps count from 0 at the data to 1000 at the noise, and a flow-matching model predicts x0 - x1
(noise less data), the negative of our velocity. The cached conditioning (text embeddings, ...) is looked up
by row, so that it is one index for whoever calls the model.
"""

from __future__ import annotations

import importlib
import inspect
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from flowtempo.errors import UserError
from flowtempo.files import read_json
from flowtempo.interpolants import Linear, VariancePreserving
from flowtempo.objectives import Objective

PREFIX = "network."
"""What the names of a foreign network's parameters start with."""

_TIMESTEPS = 1000
_FLOW = Objective(Linear(), "velocity")
# 1,000 steps of beta from 1e-4 to 0.02 are this path, with step i at t = 1 - (i + 1) / 1000, to 0.0034 in t.
_DDPM = Objective(VariancePreserving(), "noise")


@dataclass(frozen=True)
class _Family:
    """How the models of one class are called.

    Attributes:
        objective: What its models are trained for, in our terms.
        needs: The conditioning that it cannot do without, by keyword.
        inner: Conditioning that it takes inside one dictionary, of that keyword.
    """

    objective: Objective
    needs: tuple[str, ...]
    inner: tuple[str, tuple[str, ...]] = ("", ())


FAMILIES = {
    "SD3Transformer2DModel": _Family(_FLOW, ("encoder_hidden_states", "pooled_projections")),
    "SanaTransformer2DModel": _Family(_FLOW, ("encoder_hidden_states",)),
    "PixArtTransformer2DModel": _Family(
        _DDPM, ("encoder_hidden_states",), inner=("added_cond_kwargs", ("resolution", "aspect_ratio"))
    ),
    "DiTTransformer2DModel": _Family(_DDPM, ("class_labels",)),
}
# What the wrapper gives itself.
_OURS = ("hidden_states", "timestep", "return_dict")


class Transformer(nn.Module):
    """A transformer of diffusers as forward(x, t, y), t = 0 at the noise and t = 1 at the data.

    Args:
        network: The model, of a class in `FAMILIES`.
        conditions: Its conditioning by keyword, one row for each latent.

    Attributes:
        objective: What it is trained for.

    Raises:
        UserError: The class is unknown, or a keyword is missing or unknown to it.
    """

    def __init__(self, network: nn.Module, conditions: dict[str, Tensor]) -> None:
        super().__init__()
        name = type(network).__name__
        family = _family(name, name)
        config: Any = network.config
        keyword, inner = family.inner
        accepted = {*inspect.signature(network.forward).parameters, *inner}.difference(_OURS, {keyword})
        needs = (*family.needs, *(inner if config.get("use_additional_conditions") else ()))
        missing = [key for key in needs if key not in conditions]
        if missing:
            raise UserError(
                f"{name} needs embeddings of {', '.join(missing)}: add them to the embeddings file"
            )
        unknown = [key for key in conditions if key not in accepted]
        if unknown:
            raise UserError(f"{name} takes no {', '.join(unknown)}: it takes {', '.join(sorted(accepted))}")
        self.network = network
        self.objective = family.objective
        # Sana's pipelines, not its network, scale the timestep.
        self._timesteps = _TIMESTEPS * config.get("timestep_scale", 1.0)
        self._inner = family.inner
        self._conditions = conditions

    def forward(self, x: Tensor, t: Tensor, y: Tensor) -> Tensor:
        """Predict what `objective` asks for.

        Args:
            x: (B, C, H, W) noisy latents.
            t: (B,) times in [0, 1].
            y: (B,) int64, each latent's row of the conditioning.

        Returns:
            (B, C, H, W).
        """
        flow = self.objective.prediction == "velocity"
        timestep = self._timesteps * (1 - t) if flow else (_TIMESTEPS * (1 - t) - 1).clamp_min(0)
        given: dict[str, Any] = {
            name: rows[y.to(rows.device)].to(x.device) for name, rows in self._conditions.items()
        }
        keyword, inner = self._inner
        if keyword:
            given[keyword] = {name: given.pop(name, None) for name in inner}
        (output,) = self.network(hidden_states=x, timestep=timestep, return_dict=False, **given)[:1]
        # Models that predict a variance too give it in further channels.
        output = output[:, : x.shape[1]]
        return -output if flow else output


def load_transformer(
    folder: str | Path,
    conditions: dict[str, Tensor],
    shape: tuple[int, int, int],
    device: torch.device | str = "cpu",
) -> Transformer:
    """Load a transformer that diffusers saved, in float32 and evaluation mode, without gradients.

    Args:
        folder: Holds config.json and safetensors; nothing is downloaded and no pickle is read.
        conditions: Its conditioning by keyword, one row for each latent.
        shape: (C, H, W) of the latents.
        device: Where the model goes; the conditioning stays where it is.

    Raises:
        UserError: diffusers is not installed, the folder holds no such model or a damaged one, or latents or
            conditioning do not fit it.
    """
    path = Path(folder) / "config.json"
    config = read_json(path, "the configuration of a diffusers model")
    name = config.get("_class_name") if isinstance(config, dict) else None
    if not isinstance(name, str):
        raise UserError(f"{path}: names no model class (is {folder} a transformer's folder?)")
    _family(name, str(path))
    try:
        kind = getattr(importlib.import_module("diffusers"), name)
    except ImportError as error:
        raise UserError(f"{path}: a {name} needs diffusers: pip install 'flowtempo[latents]'") from error
    except AttributeError as error:
        raise UserError(f"{path}: the installed diffusers has no {name}: install a newer one") from error
    network = _load(kind, folder)
    channels = network.config.in_channels
    if channels != shape[0]:
        raise UserError(f"{path}: the model takes {channels} channels, but the latents have shape {shape}")
    patch = network.config.patch_size
    if shape[1] % patch or shape[2] % patch:
        raise UserError(f"{path}: latents of {shape[1]}x{shape[2]} cannot be cut into patches of {patch}")
    model = Transformer(network, conditions)
    return model.to(device, torch.float32).eval().requires_grad_(False)


def _family(name: str, where: str) -> _Family:
    if name not in FAMILIES:
        raise UserError(f"{where}: a {name} cannot be probed; these can: {', '.join(FAMILIES)}")
    return FAMILIES[name]


def _load(kind: Any, folder: str | Path) -> Any:
    logger = logging.getLogger("diffusers")
    level = logger.level
    # It logs what is raised below, over many lines.
    logger.setLevel(logging.CRITICAL)
    try:
        network, told = kind.from_pretrained(
            str(folder), local_files_only=True, use_safetensors=True, output_loading_info=True
        )
    except Exception as error:  # whatever diffusers, safetensors and the model's constructor raise
        raise UserError(f"{folder}: cannot be loaded: {' '.join(str(error).split())[:300]}") from error
    finally:
        logger.setLevel(level)
    # Weights that are missing would be random numbers.
    for problem in ("missing_keys", "mismatched_keys", "unexpected_keys"):
        if told.get(problem):
            raise UserError(
                f"{folder}: its weights are not those of its config.json "
                f"({problem.replace('_', ' ')}: {told[problem][0]})"
            )
    return network
