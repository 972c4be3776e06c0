"""From noise to images."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from flowtempo import randomness
from flowtempo.errors import UserError
from flowtempo.generation.guidance import Model, check_guidance, guided
from flowtempo.generation.ode import Field, Solver, SolverName
from flowtempo.interpolants import Interpolant
from flowtempo.predictions import Prediction, convert

# How far SiT stays from an end of the path at which the velocity is not finite.
END_GAP = 1e-3


@dataclass(frozen=True)
class Generated:
    """Images and how they were made.

    Attributes:
        images: (N, C, H, W) float32 in model units, on the CPU.
        labels: (N,) int64, or None for an unconditional model.
        nfe: Evaluations of the (guided) network per image; with dopri5 the most that any batch needed.
        solver: The solver with its resolved settings.
        guidance: The guidance scale.
        seed: The seed of the noise.
    """

    images: Tensor
    labels: Tensor | None
    nfe: int
    solver: Solver
    guidance: float
    seed: int


@torch.no_grad()
def generate(
    model: Model,
    *,
    interpolant: Interpolant,
    prediction: Prediction,
    shape: tuple[int, int, int],
    count: int,
    labels: Sequence[int] | Tensor | None = None,
    seed: int = 0,
    solver: SolverName = "heun",
    steps: int | None = None,
    atol: float | None = None,
    rtol: float | None = None,
    guidance: float = 1.0,
    batch_size: int = 256,
    progress: Callable[[float], None] | None = None,
) -> Generated:
    """Integrate the probability-flow ODE from noise to data.

    The noise of image i depends on (seed, i) alone, so with a fixed-step solver image i is the same, up to
    rounding, whatever the batch size and count. dopri5 chooses its steps for a batch as a whole: there it
    is the same up to the tolerance.

    Args:
        model: The network; it runs on the device of its parameters.
        interpolant: The path it was trained on.
        prediction: What its output stands for.
        shape: (C, H, W) of an image.
        count: How many images.
        labels: (count,) classes; None gives a conditional model all classes in turn (0, 1, 2, ...).
        seed: Seed of the noise.
        solver: "euler", "heun" or "dopri5".
        steps: Intervals of euler and heun (50 by default).
        atol: Absolute tolerance of dopri5 (1e-6 by default).
        rtol: Relative tolerance of dopri5 (1e-3 by default).
        guidance: Classifier-free guidance scale; 1 is the conditional model, 0 the unconditional one.
        batch_size: Images at a time.
        progress: Called after each batch with the fraction done.

    Raises:
        UserError: A value out of range, or one without effect on this model or solver.
    """
    chosen = Solver(solver, steps, atol, rtol)
    for key, value in (("count", count), ("batch_size", batch_size)):
        if value < 1:
            raise UserError(f"{key} is {value}: it must be at least 1")
    if seed < 0:
        raise UserError(f"seed is {seed}: it must not be negative")
    check_guidance(model, guidance)
    y = _labels(model, labels, count)
    device = _device(model)
    start, end = interval(interpolant, prediction)
    # What x_0 has on data of unit variance: 1 on paths that preserve the variance, 80 on EDM's.
    first_time = torch.zeros((), dtype=torch.float64)
    scale = math.hypot(float(interpolant.alpha(first_time)), float(interpolant.sigma(first_time)))
    pieces: list[Tensor] = []
    nfe = 0
    for first in range(0, count, batch_size):
        rows = range(first, min(first + batch_size, count))
        noise = scale * randomness.normal(seed, "generation noise", 0, rows, shape).to(device)
        part = None if y is None else y[first : rows.stop].to(device)
        field = _velocity(guided(model, part, guidance), interpolant, prediction)
        solution = chosen.solve(field, noise, start, end)
        pieces.append(solution.x.float().cpu())
        nfe = max(nfe, solution.nfe)
        if progress is not None:
            progress(rows.stop / count)
    return Generated(torch.cat(pieces), y, nfe, chosen, guidance, seed)


def interval(interpolant: Interpolant, prediction: Prediction) -> tuple[float, float]:
    """The times between which the velocity is integrated: all of [0, 1] unless it has a pole at an end.

    Noise and score do not determine the velocity where alpha = 0, data and score do not where sigma = 0, and
    the velocity of some paths is infinite at an end. There the path stops END_GAP short, as SiT does.
    """
    ends = torch.tensor([0.0, 1.0], dtype=torch.float64)
    finite = torch.isfinite(interpolant.d_alpha(ends)) & torch.isfinite(interpolant.d_sigma(ends))
    blind = float(interpolant.alpha(ends)[0]) == 0 and prediction in ("noise", "score")
    pole = float(interpolant.sigma(ends)[1]) == 0 and prediction in ("data", "score")
    return (
        END_GAP if blind or not bool(finite[0]) else 0.0,
        1 - END_GAP if pole or not bool(finite[1]) else 1.0,
    )


def _velocity(predict: Field, interpolant: Interpolant, prediction: Prediction) -> Field:
    def field(x: Tensor, t: Tensor) -> Tensor:
        return convert(predict(x, t), x, t, interpolant, source=prediction, to="velocity")

    return field


def _labels(model: Model, labels: Sequence[int] | Tensor | None, count: int) -> Tensor | None:
    classes = model.num_classes
    if classes == 0:
        if labels is not None:
            raise UserError("the model is unconditional (it was trained without labels): leave labels out")
        return None
    if labels is None:
        return torch.arange(count) % classes
    y = torch.as_tensor(labels)
    if y.shape != (count,) or y.is_floating_point() or y.is_complex():
        raise UserError(f"labels must be {count} whole numbers, one per image; got shape {tuple(y.shape)}")
    if int(y.min()) < 0 or int(y.max()) >= classes:
        raise UserError(
            f"labels run from {int(y.min())} to {int(y.max())}; the model's classes are 0 to {classes - 1}"
        )
    return y.to("cpu", torch.int64)


def _device(model: Model) -> torch.device:
    parameters = list(model.parameters()) if isinstance(model, nn.Module) else []
    return parameters[0].device if parameters else torch.device("cpu")
