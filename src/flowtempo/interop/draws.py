"""Times for a training loop of somebody else."""

from __future__ import annotations

from typing import Any

import torch

from flowtempo.errors import UserError
from flowtempo.timesteps.proposal import Proposing, Times


class Draws:
    """Times batch after batch, for a loop that does not count its steps for us.

    Each call draws the whole vector of all processes and gives back this process's part, so that processes
    never draw the same times and `stratified` spacing holds over all of them. The numbers depend on seed and
    step alone; no global generator is read.

    Args:
        proposal: Where times are drawn, and what they are weighted for.
        seed: The run's seed.
        rank: This process's number.
        world_size: How many processes there are; each must ask for as many times as the others.

    Attributes:
        step: Calls so far.

    Raises:
        UserError: If the rank is not one of the processes.
    """

    def __init__(self, proposal: Proposing, *, seed: int = 0, rank: int = 0, world_size: int = 1) -> None:
        if not 0 <= rank < world_size:
            raise UserError(f"rank = {rank} must be at least 0 and below world_size = {world_size}")
        self.proposal, self.seed, self.rank, self.world_size = proposal, seed, rank, world_size
        self.step = 0

    def next(self, batch_size: int, device: str | torch.device = "cpu") -> Times:
        """Draw the next batch.

        Args:
            batch_size: Times for this process, at least 1.
            device: Where they go.

        Returns:
            `t` (B,), t = 1 is data, and `weight` (B,): multiply each sample's loss by it, then take the mean.
        """
        whole = self.proposal.at(self.step).draw(
            batch_size * self.world_size, step=self.step, seed=self.seed, device=device
        )
        self.step += 1
        return whole[self.rank * batch_size : (self.rank + 1) * batch_size]

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint needs: the number of calls."""
        return {"step": self.step}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state_dict` was taken.

        Raises:
            UserError: If it is no such state.
        """
        step = state.get("step")
        if not isinstance(step, int) or step < 0:
            raise UserError(f"step = {step!r} must be a number of calls, 0 or more")
        self.step = step
