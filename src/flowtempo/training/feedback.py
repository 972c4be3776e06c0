"""What training tells an adaptive proposal: losses of each step, gradients of each probe."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from flowtempo.interpolants import Interpolant
from flowtempo.timesteps import DELAY, AdaptiveProposal, Proposal
from flowtempo.variance import Probe


class Feedback:
    """An adaptive proposal that is told from a device, without waiting for it before the value is used.

    Args:
        proposal: The proposal.
        interpolant: The path.
    """

    def __init__(self, proposal: AdaptiveProposal, interpolant: Interpolant) -> None:
        self.proposal = proposal
        self._interpolant = interpolant
        self._coming: list[tuple[int, Tensor, torch.cuda.Event | None]] = []

    @property
    def wants_losses(self) -> bool:
        """Whether it follows the losses of each step."""
        return self.proposal.adaptation.quantity == "loss"

    def at(self, step: int) -> Proposal:
        """The proposal of 0-based step `step`; steps come in order."""
        self._tell(step - DELAY)
        return self.proposal.at(step)

    def describe(self) -> dict[str, Any]:
        """What a run's header prints."""
        return self.proposal.describe()

    def step(self, step: int, told: Tensor) -> None:
        """Tell the moments of a step, (2, B), summed over processes, on any device."""
        if not self.wants_losses:
            return
        if told.device.type != "cuda":
            self._coming.append((step, told, None))
            return
        host = torch.empty(told.shape, dtype=told.dtype, pin_memory=True)
        host.copy_(told, non_blocking=True)
        arrived = torch.cuda.Event()
        arrived.record()
        self._coming.append((step, host, arrived))

    def probe(self, step: int, probe: Probe) -> None:
        """Tell the gradients that were probed after 0-based step `step`: E|g|^2, or Var g if stratified."""
        if self.wants_losses:
            return
        stratified = self.proposal.spacing == "stratified"
        curve = probe.profiles["gradient_variance" if stratified else "gradient_second_moment"]
        bins = self.proposal.adaptation.bins
        middle = (torch.arange(bins, dtype=torch.float64) + 0.5) / bins
        value, _ = curve.at(self._interpolant.log_snr(self.proposal.target.quantile(middle)))
        self._coming.append((step, torch.stack([torch.ones_like(value), value.clamp_min(0)]), None))

    def state_dict(self) -> dict[str, Any]:
        """The proposal's state, once all has arrived."""
        self._tell(None)
        return self.proposal.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from `state`.

        Raises:
            KeyError, ValueError: It is not what `state_dict` gave for the same proposal.
        """
        self.proposal.load_state_dict(state)

    def _tell(self, last: int | None) -> None:
        while self._coming and (last is None or self._coming[0][0] <= last):
            step, told, arrived = self._coming.pop(0)
            if arrived is not None:
                arrived.synchronize()
            self.proposal.update(step, told)
