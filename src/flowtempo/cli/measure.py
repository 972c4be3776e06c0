"""`flowtempo measure`: data -> profile.json."""

from __future__ import annotations

import glob
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from flowtempo.cli.console import check_paths, progress_bar, say, say_next, table
from flowtempo.cli.processes import shared_work
from flowtempo.data import ArrayData, DataConfig, load_buckets
from flowtempo.design import variance_curve
from flowtempo.errors import UserError
from flowtempo.interpolants import Interpolant
from flowtempo.interpolants import interpolant as interpolant_named
from flowtempo.predictions import Prediction
from flowtempo.variance import (
    Bracket,
    Probe,
    VarianceProfile,
    measure_by_class,
    measure_groups,
    verdict,
    with_denoiser,
)
from flowtempo.variance.bracket import DEFAULT_TARGET
from flowtempo.variance.share import Share

RECIPE_KEYS = ("data",)
_NOTHING = 1e-9
EXAMPLES = """
  flowtempo measure digits
  flowtempo measure fashion-mnist --output profile.json --plot profile.png
  flowtempo measure fashion-mnist --by-class --target-stderr 0.01
  flowtempo measure --data.kind array --data.path latents.npy --interpolant trigonometric
  flowtempo measure --data.kind sd-scripts --data.path cache/ --denoiser probe.json
  torchrun --nproc-per-node 4 -m -- flowtempo.cli.main measure fashion-mnist
"""


def measure(
    data: DataConfig = DataConfig(),  # noqa: B008 (never changed; jsonargparse reads the default)
    output: str = "profile.json",
    plot: str | None = None,
    interpolant: str = "linear",
    prediction: Prediction = "velocity",
    target_stderr: float = DEFAULT_TARGET,
    queries: int | None = None,
    noises: int = 16,
    by_class: bool = False,
    denoiser: str | None = None,
    seed: int = 0,
) -> None:
    """Bracket the variance of the data given a noisy version of it, over log-SNR.

    The lower edge is the published Monte Carlo estimate, which is too small when there are few images for
    their dimension; the upper edge is the least of a leave-one-out and a spectral bound. The truth lies
    between, up to the standard errors. Finished work is kept beside the output: after Ctrl-C or a crash
    the same command goes on from there. Several processes (torchrun) give the same numbers as one.

    Args:
        data: The images or latents.
        output: Where the profile goes.
        plot: Also draw it into this PNG.
        interpolant: Path whose times the printed table and verdict use, as text: linear, trigonometric,
            variance_preserving and others. The profile itself is the same for all.
        prediction: What the printed target variance is of.
        target_stderr: Stop where the standard error is below this, relative to E|x1|^2/d (where the signal
            dominates: to 1/SNR). 0 spends all queries everywhere.
        queries: Most images that are noised (all remain references); null is 4096.
        noises: Noise vectors for each group of queries.
        by_class: Also bracket the variance given the label, which is what a class-conditional model sees.
        denoiser: A probe.json of held-out images, whose denoising error becomes a further upper bound.
        seed: Seed of the noise and of every choice.
    """
    check_paths(data=data.path, output=output, plot=plot, denoiser=denoiser)
    path = interpolant_named(interpolant)
    error = None if denoiser is None else _denoising_error(denoiser, by_class)
    with shared_work() as part:
        with progress_bar("read") as read:
            buckets = load_buckets(data, read)
        bracket = measure_images(
            buckets,
            target_stderr=target_stderr,
            queries=queries,
            noises=noises,
            by_class=by_class,
            seed=seed,
            state=f"{output}.partial",
            part=part,
        )
    if part.rank > 0:
        return
    plain = bracket
    if error is not None:
        bracket = with_denoiser(bracket, error)
    bracket.save(output)
    for left in Path(output).resolve().parent.glob(f"{glob.escape(Path(output).name)}.partial*"):
        left.unlink()
    print_bracket(bracket, path, prediction)
    for line in verdict(bracket, path):
        say(line)
    if error is not None:
        say(_told_of_denoiser(plain, bracket, path))
    say(f"profile: {output}")
    if plot is not None:
        from flowtempo.report import save_profile_png

        save_profile_png(Path(output), Path(plot))
        say(f"plot: {plot}")
    say_next("design", output, *(["--by-class"] if by_class else []))


def measure_images(
    buckets: Sequence[ArrayData],
    *,
    target_stderr: float = DEFAULT_TARGET,
    queries: int | None = None,
    noises: int = 16,
    by_class: bool = False,
    seed: int = 0,
    state: str | None = None,
    part: Share = Share(),  # noqa: B008 (immutable)
) -> Bracket:
    """Measure with a progress bar; several sizes of images are measured apart and averaged.

    Raises:
        UserError: As `flowtempo.variance.measure` does, or if there are no labels to go by.
    """
    images = buckets[0]
    if by_class and (len(buckets) > 1 or images.labels is None):
        why = "has no labels" if len(buckets) == 1 else "has images of several sizes"
        raise UserError(f"by_class has no effect on {images.name}, which {why}: leave it out")
    groups = [("x".join(map(str, bucket.shape)), bucket, bucket.describe()) for bucket in buckets]
    options: dict[str, Any] = {
        "target_stderr": target_stderr,
        "queries": queries,
        "noises": noises,
        "seed": seed,
        "state": state,
        "share": part,
    }
    with progress_bar("measure") as progress:
        bracket = measure_groups(groups, progress=progress, **options)
    if not by_class or images.labels is None:
        return bracket
    labels = torch.from_numpy(images.labels)
    with progress_bar("measure by class") as progress:
        given = measure_by_class(images, labels, data=images.describe(), progress=progress, **options)
    # A denoiser that ignores the label is a denoiser too: its error bounds the variance with the label known.
    # Without a seed its blocks are not taken for those of the classes.
    ignoring = replace(
        bracket.upper, quantity="class_posterior_variance", method="any without label", counts={}
    )
    return replace(bracket, by_class=with_denoiser(given, ignoring))


def _denoising_error(path: str, by_class: bool) -> VarianceProfile:
    error = Probe.load(path).denoiser
    if error is None:
        raise UserError(
            f"{path}: holds no denoising error of held-out images: probe images that the run was not"
            " trained on"
        )
    if error.quantity == "class_posterior_variance" and not by_class:
        raise UserError(
            f"{path}: its model was given labels, so that its error bounds the variance with the label known:"
            " add --by-class"
        )
    return error


def _told_of_denoiser(before: Bracket, after: Bracket, path: Interpolant) -> str:
    if after.by_class is not None and before.by_class is not None:
        before, after = before.by_class, after.by_class
    lower = after.upper.mean < before.upper.mean
    if not bool(lower.any()):
        return "The denoiser lowers the upper edge nowhere: its error is not below the other bounds."
    t = path.time(after.upper.log_snr[lower])
    return (
        f"The denoiser lowers the upper edge at {int(lower.sum())} of {len(lower)} log-SNRs, between"
        f" t = {float(t[0]):.3g} and {float(t[-1]):.3g}."
    )


def print_bracket(bracket: Bracket, path: Interpolant, prediction: Prediction) -> None:
    """Print a few rows of the bracket, relative to E|x1|^2/d, and the target variance that it means."""
    lower, upper = bracket.lower, bracket.upper
    scale = lower.second_moment
    grid = lower.log_snr[:: max(1, len(lower.log_snr) // 16)]
    t = path.time(grid)
    curves = [variance_curve(edge, path, prediction, t).mean.tolist() for edge in (lower, upper)]
    columns = [("lower edge", lower), ("upper edge", upper)]
    if bracket.by_class is not None:
        columns.append(("by class, upper", bracket.by_class.upper))
    rows = []
    for index, log_snr in enumerate(grid.tolist()):
        cells = []
        for _, edge in columns:
            mean, stderr = (float(value) / scale for value in edge.at(grid[index]))
            cells.append(
                _short(mean, 3) if mean < _NOTHING else f"{_short(mean, 3)}±{stderr:.1g}".replace("e-0", "e-")
            )
        spread = f"{_short(curves[0][index], 2)} to {_short(curves[1][index], 2)}"
        rows.append([f"{log_snr:+.1f}", f"{float(t[index]):.2g}", *cells, spread])
    table(
        f"posterior variance per dimension, relative to E|x1|^2/d = {scale:.4g} ({lower.dim:,} dimensions), "
        f"and, in the data's units, the variance of the {prediction} target on the {path.name} path",
        ["log-SNR", "t", *(name for name, _ in columns), "target variance"],
        rows,
    )


def _short(value: float, digits: int) -> str:
    return f"<{_NOTHING:.0e}" if value < _NOTHING else f"{value:.{digits}g}"
