"""`flowtempo generate`: a run's checkpoint -> images."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import torch

from flowtempo.cli.console import progress_bar, say, say_next
from flowtempo.data import load
from flowtempo.files import atomic_write
from flowtempo.generation import SolverName, save_grid, save_npz
from flowtempo.generation import generate as generate_images
from flowtempo.metrics import Provenance
from flowtempo.training import Track, load_run

# Rows of a grid whose columns are the classes.
ROWS = 10
EXAMPLES = """
  flowtempo generate runs/designed
  flowtempo generate runs/designed --count 5000 --solver heun --steps 25 --guidance 1.5
  flowtempo generate runs/designed --step 500 --track raw --solver dopri5
"""


def generate(
    run: str,
    count: int = 1000,
    solver: SolverName = "heun",
    steps: int | None = None,
    atol: float | None = None,
    rtol: float | None = None,
    guidance: float = 1.0,
    step: int | None = None,
    track: Track = "ema",
    seed: int = 0,
    batch_size: int = 256,
) -> None:
    """Generate images from a run's checkpoint into RUN/samples.

    Writes step-N.npz (uint8, N x H x W x C, as evaluators read it), step-N.png (a grid of the first images)
    and step-N.json (how they were made). Image i depends on the seed and i alone, not on the batch size.

    Args:
        run: A run folder.
        count: How many images; classes in turn.
        solver: euler and heun take `steps` equal steps, dopri5 adapts its own to `atol` and `rtol`.
        steps: Intervals of euler or heun; null is 50.
        atol: Absolute tolerance of dopri5; null is 1e-6.
        rtol: Relative tolerance of dopri5; null is 1e-3.
        guidance: Classifier-free guidance scale; 1 is the conditional model itself.
        step: Which checkpoint; null is the newest.
        track: Averaged weights or the last ones.
        seed: Seed of the noise.
        batch_size: Images at a time.
    """
    path = generate_samples(
        run,
        count=count,
        solver=solver,
        steps=steps,
        atol=atol,
        rtol=rtol,
        guidance=guidance,
        step=step,
        track=track,
        seed=seed,
        batch_size=batch_size,
    )
    say(f"images: {path}")
    if path.with_suffix(".png").exists():
        say(f"grid: {path.with_suffix('.png')}")
    say_next("evaluate", run)


def generate_samples(
    run: str,
    *,
    count: int,
    step: int | None,
    track: Track,
    batch_size: int = 256,
    description: str = "generate",
    solver: SolverName = "heun",
    steps: int | None = None,
    atol: float | None = None,
    rtol: float | None = None,
    guidance: float = 1.0,
    seed: int = 0,
) -> Path:
    """Generate and write the three files; see `generate`.

    Returns:
        The .npz file.
    """
    device = "cuda" if torch.cuda.is_available() else "cpu"
    loaded = load_run(run, step, track, device)
    data = load(loaded.config.data, scaling=loaded.scaling)
    loaded.check_data(data)
    loaded.check_guidance(guidance)
    data.to_uint8(torch.zeros(1, *loaded.shape))  # refuses what has no pixels before anything is generated
    objective = loaded.objective
    with progress_bar(description) as progress:
        generated = generate_images(
            loaded.model,
            interpolant=objective.interpolant,
            prediction=objective.prediction,
            shape=loaded.shape,
            count=count,
            solver=solver,
            steps=steps,
            atol=atol,
            rtol=rtol,
            guidance=guidance,
            seed=seed,
            batch_size=batch_size,
            progress=progress,
        )
    images = data.to_uint8(generated.images)
    checkpoint = f"step-{loaded.step:08d}"
    provenance = Provenance(
        solver=generated.solver.name,
        steps=generated.solver.steps,
        nfe=generated.nfe,
        guidance=guidance,
        ema=track,
        seed=seed,
        checkpoint=checkpoint,
    )
    path = Path(run) / "samples" / f"{checkpoint}.npz"
    # From here until the record is written, what an interruption leaves cannot be taken for a whole.
    path.with_suffix(".json").unlink(missing_ok=True)
    for stale in (Path(run) / "evaluations").glob(f"{checkpoint}*.json"):
        stale.unlink()
        say(f"{stale}: removed, for it was of the images that these replace")
    labels = None if generated.labels is None else generated.labels.numpy()
    save_npz(path, images, labels)
    if images.shape[1] in (1, 3):
        columns = loaded.num_classes if 1 < loaded.num_classes <= 2 * ROWS else ROWS
        save_grid(path.with_suffix(".png"), images[: ROWS * columns], columns=columns)
    with atomic_write(path.with_suffix(".json")) as file:
        json.dump({"schema": 1, "step": loaded.step, **dataclasses.asdict(provenance)}, file, indent=2)
    return path
