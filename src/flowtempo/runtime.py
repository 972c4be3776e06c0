"""Processes, devices and reductions: the one module that knows accelerate and torch.distributed."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from accelerate import Accelerator


class Runtime:
    """This process among those that `accelerate launch` or `torchrun` started; alone without them.

    Attributes:
        rank: Number of this process, from 0.
        world_size: Number of processes.
        device: Where this process computes.
    """

    def __init__(self) -> None:
        # Imported here because it takes seconds that `flowtempo --help` should not.
        from accelerate import Accelerator

        # Precision is the configuration's affair and handled by autocast in the training step, so that
        # runs of different precision can follow each other in one process.
        # Left to itself on a machine without GPU, accelerate 1.15 takes each of torchrun's processes for the
        # only one.
        cpu = not torch.accelerator.is_available()
        self._accelerator: Accelerator = Accelerator(mixed_precision="no", cpu=cpu)
        self.rank: int = self._accelerator.process_index
        self.world_size: int = self._accelerator.num_processes
        self.device: torch.device = self._accelerator.device

    @property
    def is_main(self) -> bool:
        """Whether this process writes the files."""
        return self.rank == 0

    def prepare(self, model: nn.Module) -> nn.Module:
        """Move `model` to the device and, with several processes, wrap it so that gradients are averaged."""
        prepared: nn.Module = self._accelerator.prepare_model(model)
        return prepared

    def accumulating(self, model: nn.Module, *, last: bool) -> contextlib.AbstractContextManager[None]:
        """Around the forward and backward of one part of a batch: only the last part averages gradients."""
        if last or self.world_size == 1:
            return contextlib.nullcontext()
        context: contextlib.AbstractContextManager[None] = self._accelerator.no_sync(model)
        return context

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum of every process's tensor, on every process."""
        if self.world_size == 1:
            return tensor
        total = tensor.clone()
        torch.distributed.all_reduce(total)
        return total

    def barrier(self) -> None:
        """Wait for every process."""
        self._accelerator.wait_for_everyone()

    def close(self) -> None:
        """Leave the process group; nothing can be reduced afterwards."""
        self._accelerator.end_training()
