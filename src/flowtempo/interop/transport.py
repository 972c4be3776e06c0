"""SiT and LightningDiT: the method `Transport.sample`; REPA: the times of its loss.

Facts are those of willisma/SiT@947f95b and hustvl/LightningDiT@2725fed (transport/transport.py: t = 1 is
data, `sample(x1)` gives t, x0, x1) and of sihyun-yu/REPA@2b8c181 (loss.py: t = 1 is noise).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from flowtempo.errors import UserError
from flowtempo.interop.draws import Draws
from flowtempo.interop.export import Export, Options, Target, exactly
from flowtempo.interop.subject import Subject
from flowtempo.interpolants import Linear, Trigonometric, VariancePreserving
from flowtempo.timesteps import Proposal

_INSTEAD = "design with --rule paper, or use flowtempo's own training"


class TransportSample:
    """Stands in for `Transport.sample` of SiT and LightningDiT: `transport.sample = TransportSample(...)`.

    The noise is torch's, as theirs is; the times are counter-based.

    Args:
        proposal: Where times are drawn; it must draw from its target, since their loss has no place for
            importance weights.
        seed: The run's seed.
        rank: This process's number.
        world_size: How many processes there are.

    Attributes:
        draws: Where the times come from; its `state_dict` belongs in the checkpoint.

    Raises:
        UserError: If the proposal needs weights, or the rank is not one of the processes.
    """

    def __init__(self, proposal: Proposal, *, seed: int = 0, rank: int = 0, world_size: int = 1) -> None:
        _need_no_weights(proposal, "Transport.sample")
        self.draws = Draws(proposal, seed=seed, rank=rank, world_size=world_size)

    def __call__(self, x1: Tensor, sp_timesteps: Any = None, shifted_mu: float = 0) -> tuple[Tensor, ...]:
        """Draw the noise and the times of a batch.

        Args:
            x1: Data, (B, ...).
            sp_timesteps: LightningDiT's two ends of a range, used in its validation: uniform times there.
            shifted_mu: LightningDiT's shift of its own density; must be 0.

        Returns:
            t (B,) float32 or wider, x0 and x1 in the shape of `x1`.

        Raises:
            UserError: If `shifted_mu` asks for another density.
        """
        if shifted_mu != 0:
            raise UserError(
                f"shifted_mu = {shifted_mu} has no effect on the density given here: leave it out"
            )
        x0 = torch.randn_like(x1)
        dtype = torch.promote_types(x1.dtype, torch.float32)
        t = self.draws.next(len(x1), x1.device).t.to(dtype)
        if sp_timesteps is not None:
            low, high = sp_timesteps
            t = torch.rand(len(x1), device=x1.device, dtype=dtype) * (high - low) + low
        return t, x0, x1


class RepaTimes:
    """The `time_input` of REPA's loss, (B, 1, 1, 1): t = 1 is noise there.

    Args:
        proposal: Where times are drawn; it must draw from its target, since that loss has no place for
            importance weights.
        seed: The run's seed.
        rank: This process's number.
        world_size: How many processes there are.

    Attributes:
        draws: Where the times come from; its `state_dict` belongs in the checkpoint.

    Raises:
        UserError: If the proposal needs weights, or the rank is not one of the processes.
    """

    def __init__(self, proposal: Proposal, *, seed: int = 0, rank: int = 0, world_size: int = 1) -> None:
        _need_no_weights(proposal, "REPA's loss")
        self.draws = Draws(proposal, seed=seed, rank=rank, world_size=world_size)

    def __call__(self, images: Tensor) -> Tensor:
        """Draw the times of a batch of images (B, ...): 1 - t, (B, 1, 1, 1), float32."""
        return (1 - self.draws.next(len(images), images.device).t).reshape(-1, 1, 1, 1)


def _need_no_weights(proposal: Proposal, where: str) -> None:
    if proposal.density is not None:
        raise UserError(f"{where} has no place for importance weights: draw from the target")


def _sit(subject: Subject, options: Options) -> Export:
    subject.need_density_only("Transport.sample", _INSTEAD)
    subject.need("SiT", (Linear, Trigonometric, VariancePreserving), ("velocity", "noise", "score"))
    return exactly(
        subject,
        "SiT and LightningDiT count as flowtempo does, t = 1 is data: nothing changes sign",
        f"from flowtempo.interop import TransportSample, load_proposal\n"
        f"transport.sample = TransportSample({subject.python()}, seed=0)",
        ("with several processes also give rank= and world_size=",),
    )


def _repa(subject: Subject, options: Options) -> Export:
    subject.need_density_only("REPA's loss", _INSTEAD)
    subject.need("REPA", (Linear, Trigonometric), ("velocity",))
    return exactly(
        subject,
        "REPA counts t = 1 as noise: the times are 1 - t",
        f"from flowtempo.interop import RepaTimes, load_proposal\n"
        f"times = RepaTimes({subject.python()}, seed=0)\n"
        "time_input = times(images)  # in SILoss.__call__, instead of its own",
        ("with several processes also give rank= and world_size=",),
    )


SIT = Target("the method Transport.sample of SiT and LightningDiT", _sit)
REPA = Target("the times of REPA's loss", _repa)
