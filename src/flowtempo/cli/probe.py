"""`flowtempo probe`: a model and images -> probe.json."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from flowtempo.cli.console import check_paths, progress_bar, say, say_next, table
from flowtempo.cli.processes import shared_work
from flowtempo.data import ArrayData, DataConfig, load, load_embeddings
from flowtempo.errors import UserError
from flowtempo.models.foreign import PREFIX, load_transformer
from flowtempo.objectives import Objective
from flowtempo.training import LoadedRun, ProbeSet, Track, load_run
from flowtempo.training.run import newest_step
from flowtempo.variance import Probe, Share
from flowtempo.variance.probe import GRADIENTS, first_number
from flowtempo.variance.profile import Quantity

RUN_KEYS = ("data",)
EXAMPLES = """
  flowtempo probe runs/uniform
  flowtempo probe runs/uniform --data.split test --output held_out.json --plot held_out.png
  flowtempo probe runs/uniform --step 500 --track raw --images 64 --times 17
  flowtempo probe runs/uniform --parameters "attn|mlp"
  flowtempo probe --transformer sd3/ --embeddings text.npz --data.kind array --data.path latents.npy
  torchrun --nproc-per-node 4 -m -- flowtempo.cli.main probe runs/uniform
"""
_ROWS = 17


@dataclass(frozen=True)
class _Subject:
    """What is probed.

    Attributes:
        model: forward(x, t, y), without gradients as yet.
        objective: What it is trained for.
        images: On what.
        setting: What the record says of the model.
        doubt: Why the images do not count as held out; None if they do.
        prefix: What every parameter's name starts with that is not the model's own.
    """

    model: nn.Module
    objective: Objective
    images: ProbeSet
    setting: dict[str, Any]
    doubt: str | None
    prefix: str = ""

    def own(self, name: str) -> str:
        """The name of a parameter as the model's authors know it."""
        return name.removeprefix(self.prefix)


def probe(
    run: str | None = None,
    data: DataConfig = DataConfig(),  # noqa: B008 (never changed; jsonargparse reads the default)
    output: str = "probe.json",
    plot: str | None = None,
    step: int | None = None,
    track: Track = "ema",
    images: int = 256,
    times: int = 33,
    batch_size: int = 32,
    parameters: str | None = None,
    transformer: str | None = None,
    embeddings: str | None = None,
) -> None:
    """Measure the gradients and losses of a model over the noise axis.

    At each of `times` times: the second moment E|g|^2 and the variance of the gradient g of one image's loss
    by the parameters, the length of the mean gradient |E g|, and the loss, with standard errors; the same for
    each part of the model. Images are given with their labels, none dropped. On images that the model was
    not trained on, its error in predicting them bounds the variance from above too (`flowtempo measure
    --denoiser`). A run may still be in training: its newest checkpoint is taken. Several processes (torchrun)
    give the same numbers as one.

    Args:
        run: what `flowtempo train` wrote; left out to probe a --transformer
        data: The images: those that the run was trained on, with single keys changed here (such as
            --data.split test), or others with --data.kind.
        output: Where the probe goes.
        plot: Also draw it into this PNG.
        step: Which checkpoint; null is the newest.
        track: Averaged weights or the last ones.
        images: How many images: a fixed random choice.
        times: How many times, denser at both ends.
        batch_size: Images at a time.
        parameters: Only the parameters whose names this regular expression is found in.
        transformer: Folder of a diffusers transformer (config.json and safetensors); needs diffusers.
        embeddings: Its cached conditioning, a .safetensors or .npz file: one array for each keyword argument,
            one row for each image of the data.
    """
    check_paths(data=data.path, output=output, plot=plot, embeddings=embeddings)
    for name, value in (("times", times), ("batch_size", batch_size)):
        if value < 1:
            raise UserError(f"{name} is {value}: it must be at least 1")
    with shared_work() as part:
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        if run is not None:
            if transformer is not None or embeddings is not None:
                raise UserError("transformer and embeddings have no effect on a run: leave them out")
            subject = _of_run(run, data, images, step, track, part, device)
        elif transformer is not None:
            if step is not None or track != "ema":
                raise UserError("step and track have no effect on a transformer: leave them out")
            subject = _of_transformer(transformer, embeddings, data, images, device)
        else:
            raise UserError("name a run folder (flowtempo probe RUN), or a model with --transformer")
        _require_gradients(subject, parameters)
        with progress_bar("probe") as progress:
            measured = subject.images.probe(
                subject.model,
                subject.objective,
                times=times,
                batch_size=batch_size,
                group=lambda name: first_number(subject.own(name)),
                share=part,
                progress=progress,
                setting=subject.setting,
            )
    if part.rank > 0:
        return
    measured.save(output)
    print_probe(measured, subject.objective)
    say(_told_of_images(subject))
    say(f"probe: {output}")
    if plot is not None:
        from flowtempo.report import save_probe_png

        save_probe_png(Path(output), Path(plot))
        say(f"plot: {plot}")
    say_next("design", output, "--rule", "importance")
    if measured.denoiser is not None:
        say(f"its denoising error as an upper edge: flowtempo measure DATA --denoiser {shlex.quote(output)}")


def print_probe(measured: Probe, objective: Objective) -> None:
    """Print a few rows of the whole model's curves."""
    curves = measured.profiles
    names: tuple[Quantity, ...] = ("loss", *GRADIENTS)
    grid = curves["loss"].log_snr
    t = objective.interpolant.time(grid).tolist()
    rows = []
    for index in range(0, len(grid), -(-len(grid) // _ROWS)):
        cells = [
            f"{float(curves[name].mean[index]):.4g} ± {float(curves[name].stderr[index]):.2g}"
            for name in names
        ]
        rows.append([f"{t[index]:.4f}", f"{float(grid[index]):+.1f}", *cells])
    told = curves["loss"].model
    table(
        f"the gradient g of one image's {objective.prediction} loss on the {objective.interpolant} path"
        f" by {told['parameters']:,} parameters",
        ["t", "log-SNR", "loss", "E|g|²", "Var g", "|E g|"],
        rows,
    )


def _of_run(
    run: str,
    config: DataConfig,
    count: int,
    step: int | None,
    track: Track,
    part: Share,
    device: torch.device,
) -> _Subject:
    if step is None and part.world_size > 1:
        # Of a run in training each process could find another checkpoint.
        mine = newest_step(run) if part.rank == 0 else 0
        step = int(part.sum(torch.tensor(mine)))
    loaded = load_run(run, step, track, device)
    data = load(config, scaling=loaded.scaling)
    loaded.check_data(data)
    trained_on: ArrayData | None = data
    doubt = None
    if data.fingerprint != loaded.data["fingerprint"]:
        if config == loaded.config.data:
            raise UserError(
                f"{data.name}: its contents changed since {run} was trained on it: put the old data back, or "
                "name other images with --data.kind"
            )
        trained_on, doubt = _training_images(loaded)
    images = ProbeSet(data, count, trained_on)
    if images.seen:
        doubt = f"the run was trained on {'them' if images.seen == count else f'{images.seen:,} of them'}"
    setting = {"run": run, "step": loaded.step, "track": track}
    return _Subject(loaded.model, loaded.objective, images, setting, doubt)


def _training_images(loaded: LoadedRun) -> tuple[ArrayData | None, str | None]:
    """The images that a run was trained on, or why they cannot be had."""
    try:
        images = load(loaded.config.data, scaling=loaded.scaling)
    except UserError as error:
        return None, f"the run's training images cannot be compared with them ({error})"
    if images.fingerprint != loaded.data["fingerprint"]:
        return None, f"{images.name} changed since {loaded.folder} was trained on it"
    return images, None


def _of_transformer(
    folder: str, embeddings: str | None, config: DataConfig, count: int, device: torch.device
) -> _Subject:
    data = load(config)
    given = {} if embeddings is None else load_embeddings(embeddings, len(data))
    model = load_transformer(folder, given, data.shape, device)
    images = ProbeSet(data, count, None, condition=torch.arange(len(data)))
    doubt = "on which images the transformer was trained is not known"
    return _Subject(model, model.objective, images, {"run": folder}, doubt, PREFIX)


def _require_gradients(subject: _Subject, expression: str | None) -> None:
    """Let the parameters be measured whose names the expression is found in; all without one."""
    try:
        found: Callable[[str], Any] = re.compile(expression or "").search
    except re.error as error:
        raise UserError(f"parameters: {expression!r} is no regular expression ({error})") from error
    named = {subject.own(name): parameter for name, parameter in subject.model.named_parameters()}
    names = list(named)
    if not any(map(found, names)):
        raise UserError(
            f"parameters: {expression!r} is found in no parameter's name, such as {names[0]}, "
            f"{names[len(names) // 2]} or {names[-1]}"
        )
    for name, parameter in named.items():
        parameter.requires_grad_(found(name) is not None)


def _told_of_images(subject: _Subject) -> str:
    images = subject.images
    told = f"{len(images):,} of {len(images.data):,} images of {images.data.name}"
    if subject.doubt is None:
        return f"images: {told}, held out: the run was trained on none of them"
    return (
        f"images: {told}, not held out: {subject.doubt}; so the denoising error, no upper bound, is left out"
    )
