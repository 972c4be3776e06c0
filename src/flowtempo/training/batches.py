"""What each optimizer step trains on, as a pure function of the step: images, labels, times and noise."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from operator import itemgetter

import torch
from torch import Tensor

from flowtempo import randomness
from flowtempo.data import ArrayData, OptimalTransport
from flowtempo.errors import UserError
from flowtempo.interpolants import Interpolant, Linear
from flowtempo.objectives import Banks, MultiSample
from flowtempo.timesteps import Proposal, Proposing


@dataclass(frozen=True)
class Batch:
    """One process's share of a global batch.

    Attributes:
        x1: (B, C, H, W) float32 images.
        x0: (B, C, H, W) float32 noise.
        y: (B,) int64 labels, or None for unconditional data.
        t: (B,) float32 times.
        weight: (B,) float32 importance weights.
    """

    x1: Tensor
    x0: Tensor
    y: Tensor | None
    t: Tensor
    weight: Tensor

    def __len__(self) -> int:
        return len(self.x1)

    def to(self, device: torch.device) -> Batch:
        """Copy to `device`; from pinned memory without waiting for it."""
        return self._map(lambda tensor: tensor.to(device, non_blocking=True))

    def pin(self) -> Batch:
        """Copy to page-locked memory."""
        return self._map(Tensor.pin_memory)

    def split(self, parts: int) -> list[Batch]:
        """Cut into `parts` batches of equal length."""
        size = len(self) // parts
        slices = [slice(part * size, (part + 1) * size) for part in range(parts)]
        return [self._map(itemgetter(part)) for part in slices]

    def _map(self, function: Callable[[Tensor], Tensor]) -> Batch:
        y = None if self.y is None else function(self.y)
        return Batch(function(self.x1), function(self.x0), y, function(self.t), function(self.weight))


class Batches:
    """The global batch of every step and this process's share of it.

    Every draw is keyed by (seed, stream, step, index in the global batch). So it depends on neither the
    number of processes nor what was drawn before, and a resumed run goes on as if never stopped.
    Each epoch is one permutation of the data; a batch may span two.

    Args:
        data: The images.
        proposal: Where t is drawn; of an adaptive one `iterate` asks for one step after the other.
        batch_size: Images of the global batch.
        accumulate: Parts per process.
        seed: Seed of every draw.
        label_dropout: Probability that a label becomes the null label (`data.num_classes`).
        multi_sample: Replace data and noise by their expectation over several images.
        coupling: Permute the noise of the global batch.
        interpolant: The path, which `multi_sample` needs.
        rank: This process.
        world_size: Number of processes.

    Raises:
        UserError: The batch cannot be cut into equal parts.
    """

    def __init__(
        self,
        data: ArrayData,
        proposal: Proposing,
        *,
        batch_size: int,
        accumulate: int = 1,
        seed: int = 0,
        label_dropout: float = 0.0,
        multi_sample: MultiSample | None = None,
        coupling: OptimalTransport | None = None,
        interpolant: Interpolant = Linear(),  # noqa: B008 (it holds nothing that changes)
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        if batch_size % (world_size * accumulate):
            raise UserError(
                f"batch_size {batch_size} cannot be shared equally by {world_size} process(es) "
                f"x accumulate {accumulate}: make it a multiple of {world_size * accumulate}"
            )
        self.data = data
        self.proposal = proposal
        self.batch_size = batch_size
        self.seed = seed
        self.label_dropout = label_dropout
        share = batch_size // world_size
        self._share = slice(rank * share, (rank + 1) * share)
        self.coupling = coupling
        self.interpolant = interpolant
        self.banks: Banks | None = None
        if multi_sample is not None:
            count, labels, classes = len(data), data.labels, data.num_classes
            self.banks = Banks(
                multi_sample, data.batch, count=count, labels=labels, num_classes=classes, seed=seed
            )
        self._epoch: tuple[int, Tensor] | None = None

    def at(self, step: int, proposal: Proposal | None = None) -> Batch:
        """This process's share of the global batch of 0-based optimizer step `step`, on the CPU.

        Args:
            step: The step.
            proposal: That of the step, if it is known already.
        """
        local = range(self.batch_size)[self._share]
        span = local if self.coupling is None else self.coupling.span(local, self.batch_size)
        indices = self._indices(step, span)
        x1, y = self.data.batch(indices)
        proposal = proposal or self.proposal.at(step)
        times = proposal.draw(self.batch_size, step=step, seed=self.seed)[self._share]
        x0 = randomness.normal(self.seed, "noise", step, span, self.data.shape)
        if y is not None and self.label_dropout > 0:
            drawn = randomness.uniform(self.seed, "label dropout", step, self.batch_size)
            y = torch.where(drawn[span.start : span.stop] < self.label_dropout, self.data.num_classes, y)
        if self.coupling is not None:
            mine = slice(local.start - span.start, local.stop - span.start)
            x0 = self.coupling.pair(x0, x1, y)[mine]
            x1, y = x1[mine], None if y is None else y[mine]
        if self.banks is not None:
            x1, x0 = self.banks.expected(x1, x0, times.t, y, indices, step=step, interpolant=self.interpolant)
        return Batch(x1, x0, y, times.t, times.weight)

    def iterate(self, first: int, last: int, *, pin: bool = False) -> Iterator[Batch]:
        """The batches of steps `first` to `last` - 1, each prepared while the one before is used.

        Args:
            first: First step.
            last: One past the last step.
            pin: Put them in page-locked memory, for a GPU.
        """

        def prepare(step: int, proposal: Proposal) -> Batch:
            batch = self.at(step, proposal)
            return batch.pin() if pin else batch

        with ThreadPoolExecutor(max_workers=1, thread_name_prefix="batches") as pool:
            # The proposal is asked for here: what it has been told by now must not depend on the thread.
            ahead = pool.submit(prepare, first, self.proposal.at(first))
            for step in range(first, last):
                batch = ahead.result()
                if step + 1 < last:
                    ahead = pool.submit(prepare, step + 1, self.proposal.at(step + 1))
                yield batch

    def _indices(self, step: int, local: range) -> Tensor:
        position = torch.arange(local.start, local.stop) + step * self.batch_size
        epoch, within = position // len(self.data), position % len(self.data)
        indices = torch.empty_like(position)
        for number in epoch.unique().tolist():
            chosen = epoch == number
            indices[chosen] = self._permutation(number)[within[chosen]]
        return indices

    def _permutation(self, epoch: int) -> Tensor:
        if self._epoch is None or self._epoch[0] != epoch:
            self._epoch = epoch, randomness.permutation(self.seed, "data order", epoch, len(self.data))
        return self._epoch[1]
