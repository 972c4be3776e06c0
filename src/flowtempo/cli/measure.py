"""`flowtempo measure`: data -> profile.json."""

from __future__ import annotations

from pathlib import Path

from flowtempo.cli.console import check_distinct, progress_bar, say, table
from flowtempo.data import ArrayData, DataConfig, load
from flowtempo.variance import Bracket
from flowtempo.variance import measure as measure_bracket

RECIPE_KEYS = ("data",)
EXAMPLES = """
  flowtempo measure digits
  flowtempo measure fashion-mnist --output profile.json --plot profile.png
  flowtempo measure --data.kind array --data.path latents.npy --noises 64
"""


def measure(
    data: DataConfig = DataConfig(),  # noqa: B008 (never changed; jsonargparse reads the default)
    output: str = "profile.json",
    plot: str | None = None,
    noises: int = 16,
    queries: int | None = None,
    seed: int = 0,
) -> None:
    """Bracket the variance of the data given a noisy version of it, over log-SNR.

    The lower edge is the published Monte Carlo estimate, which is too small when there are few images for
    their dimension; the upper edge is the least of a leave-one-out and a spectral bound. The truth lies
    between, up to the standard errors.

    Args:
        data: The images.
        output: Where the profile goes.
        plot: Also draw it into this PNG.
        noises: Noise vectors per image and log-SNR.
        queries: Images that are noised (all remain references); null chooses by the size of the data.
        seed: Seed of the noise and of every choice.
    """
    check_distinct(data=data.path, output=output, plot=plot)
    images = load(data)
    bracket = measure_images(images, noises=noises, queries=queries, seed=seed)
    bracket.save(output)
    print_bracket(bracket)
    say(f"profile: {output}")
    if plot is not None:
        from flowtempo.report import save_profile_png

        save_profile_png(Path(output), Path(plot))
        say(f"plot: {plot}")
    say(f"next: flowtempo design {output}")


def measure_images(
    data: ArrayData, *, noises: int = 16, queries: int | None = None, seed: int = 0
) -> Bracket:
    """Measure with a progress bar; see `flowtempo.variance.measure`."""
    images, _ = data.batch(range(len(data)))
    with progress_bar("measure") as progress:
        return measure_bracket(
            images, noises=noises, queries=queries, seed=seed, progress=progress, data=data.describe()
        )


def print_bracket(bracket: Bracket) -> None:
    """Print a few rows of the bracket, relative to E|x1|^2/d."""
    lower, upper = bracket.lower, bracket.upper
    scale = lower.second_moment
    grid = lower.log_snr.tolist()
    rows = []
    for index in range(0, len(grid), 8):
        cells = [
            f"{_short(float(edge.mean[index]) / scale, 4)} ± {_short(float(edge.stderr[index]) / scale, 2)}"
            for edge in (lower, upper)
        ]
        rows.append([f"{grid[index]:+.1f}", *cells])
    table(
        f"posterior variance per dimension, relative to E|x1|^2/d = {scale:.4g} ({lower.dim:,} dimensions)",
        ["log-SNR", "lower edge", "upper edge"],
        rows,
    )


def _short(value: float, digits: int) -> str:
    return "<1e-9" if value < 1e-9 else f"{value:.{digits}g}"
