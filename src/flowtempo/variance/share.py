"""How the kernel splits work over processes, without knowing who started them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor


def _alone(tensor: Tensor) -> Tensor:
    return tensor


@dataclass(frozen=True)
class Share:
    """The part of the work that this process does.

    Units of work are numbered; process `rank` of `world_size` does those with unit % world_size == rank.

    Attributes:
        rank: Number of this process, from 0.
        world_size: Number of processes.
        sum: Adds a tensor over all processes and gives the sum to each.
    """

    rank: int = 0
    world_size: int = 1
    sum: Callable[[Tensor], Tensor] = _alone

    def has(self, unit: int) -> bool:
        """Whether a unit of work is this process's."""
        return unit % self.world_size == self.rank
