"""What a probe passes through a model at one time: images with noise, in blocks, and the sums over them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import torch
from torch import Tensor, nn

from flowtempo.errors import UserError
from flowtempo.objectives import Objective, mse
from flowtempo.predictions import error_factor, target
from flowtempo.randomness import normal
from flowtempo.variance.gradient_moments import Moments, inner_products
from flowtempo.variance.gradients import Batch, SampleGradients

# A block's samples go through the model together, so few samples make fewer blocks and not tiny ones.
_BLOCKS, _SMALL_BLOCK, _FEW_BLOCKS = 16, 4, 8
_LEAST_BLOCKS = 4
_BLOCK_GRADIENT_BYTES = 1 << 32


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put every module into evaluation mode, and each back into its own at the end."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


@dataclass(frozen=True)
class Losses:
    """The loss of each sample and the error of the data prediction per dimension, (B, 2).

    Attributes:
        objective: The loss; unweighted.
        dtype: What the model takes.
    """

    columns: ClassVar[int] = 3
    """Of the sums in `Moments`: loss, its square, error."""

    objective: Objective
    dtype: torch.dtype

    def __call__(self, model: nn.Module, batch: Batch) -> Tensor:
        """Run the model on x1, x0, t, y."""
        x1, x0, t, y = batch
        assert x1 is not None
        assert x0 is not None
        assert t is not None
        path, prediction = self.objective.interpolant, self.objective.prediction
        # Noise is added in full precision even for a model in half precision.
        output = model(path.mix(x1, x0, t).to(self.dtype), t, y)
        loss = self.objective.loss(output, x1, x0, t).total
        with torch.no_grad():
            # At the poles of `convert` this error of the prediction is the better conditioned one.
            error = mse(output, target(prediction, x1, x0, t, path)) / error_factor(prediction, path, t)
        return torch.stack([loss, error.to(loss.dtype)], 1)


@dataclass(frozen=True, eq=False)
class Sampling:
    """Images, their noise and labels, in blocks; the same at every time.

    Attributes:
        x1: Images, (N, ...), on the CPU in the model's precision, float32 at least.
        x0: Noise, the shape of `x1`.
        y: Labels, or None.
        starts: First sample of each block, and N; sizes differ by 1 at most.
        batch_size: Samples per pass.
        engine: Whose losses are `Losses`.
    """

    x1: Tensor
    x0: Tensor
    y: Tensor | None
    starts: tuple[int, ...]
    batch_size: int
    engine: SampleGradients

    @classmethod
    def load(
        cls,
        batch: Callable[[Tensor], tuple[Tensor, Tensor | None]],
        count: int,
        *,
        seed: int,
        batch_size: int,
        engine: SampleGradients,
    ) -> Sampling:
        """Get the images and draw the noise.

        Raises:
            UserError: If an image is not finite.
            ValueError: If `batch` returns another number of images or labels.
        """
        x1, y = batch(torch.arange(count))
        if len(x1) != count or (y is not None and len(y) != count):
            raise ValueError(f"{count} images were asked for, {len(x1)} came, or not as many labels")
        if not bool(torch.isfinite(x1).all()):
            raise UserError("the images hold NaN or infinite values")
        parameters = engine.parameters.values()
        dtype = torch.promote_types(next(iter(parameters)).dtype, torch.float32)
        x1 = x1.to("cpu", dtype)
        x0 = normal(seed, "probe noise", 0, range(count), x1.shape[1:]).to(dtype)
        size = sum(p.numel() * max(p.element_size(), 4) for p in parameters)
        blocks = min(_BLOCKS, max(_FEW_BLOCKS, count // _SMALL_BLOCK))
        blocks = min(blocks, max(_LEAST_BLOCKS, _BLOCK_GRADIENT_BYTES // size))
        starts = tuple(b * count // blocks for b in range(blocks + 1))
        return cls(x1, x0, y, starts, batch_size, engine)

    @property
    def sizes(self) -> list[int]:
        """Samples in each block."""
        return [end - first for first, end in pairwise(self.starts)]

    def measure(self, t: float, k: int, groups: Mapping[str, int], moments: Moments) -> Iterator[float]:
        """Fill in the sums at time `t`, number `k`; yields the fraction done after each pass.

        The gradients of all blocks are kept until the end.
        """
        blocks = len(self.starts) - 1
        sums = {
            name: p.new_zeros(blocks, p.numel(), dtype=torch.promote_types(p.dtype, torch.float32))
            for name, p in self.engine.parameters.items()
        }
        numbers = torch.tensor(list(groups.values()))
        for b, (first, end) in enumerate(pairwise(self.starts)):
            for start in range(first, end, self.batch_size):
                rows = slice(start, min(start + self.batch_size, end))
                found = self.engine(self._batch(t, rows))
                loss, error = found.values.double().cpu().unbind(1)
                moments.values[k, b] += torch.stack([loss, loss.square(), error]).sum(1)
                moments.squares[k, b].index_add_(0, numbers, found.squares.sum(0).cpu())
                for name, g in found.total.items():
                    sums[name][b] += g.flatten()
                yield rows.stop / len(self.x1)
        moments.products[k] = inner_products(sums, groups, moments.squares.shape[2]).cpu()

    def _batch(self, t: float, rows: slice) -> Batch:
        device = next(iter(self.engine.parameters.values())).device
        x1, x0 = self.x1[rows].to(device), self.x0[rows].to(device)
        times = torch.full((len(x1),), t, dtype=x1.dtype, device=device)
        return x1, x0, times, None if self.y is None else self.y[rows].to(device)
