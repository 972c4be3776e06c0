"""guided-diffusion and improved-diffusion: a `ScheduleSampler` over the integer steps.

Facts are those of openai/guided-diffusion@652888e (guided_diffusion/resample.py) and
openai/improved-diffusion@1bc7bbb: step 0 is the least noise; `weights()` gives a positive number for each
step, `sample(batch_size, device)` gives steps and the weights of their losses.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from flowtempo.densities import Density, Piecewise
from flowtempo.design import distance
from flowtempo.errors import UserError
from flowtempo.interop.draws import Draws
from flowtempo.interop.export import Export, Options, Target
from flowtempo.interop.subject import Subject
from flowtempo.interpolants import DdpmCosine, DdpmLinear, Discrete
from flowtempo.timesteps import Proposal

_STEPS = 1000


class StepSampler:
    """Stands in for a `ScheduleSampler`: integer steps with the weights of their losses.

    Step i stands for the noise levels 1 - t from i / steps to (i + 1) / steps, and is drawn with the
    density's mass there. If the proposal keeps its target, a loss is multiplied by the ratio of the two
    masses, which is the importance weight that these trainers expect (1 / (steps p_i) for a uniform target);
    if it draws from the target itself, every weight is 1 and the objective moves.

    Args:
        proposal: Where times are drawn, and what they are weighted for.
        steps: The diffusion's number of steps.
        seed: The run's seed.
        rank: This process's number.
        world_size: How many processes there are.

    Attributes:
        draws: Where the times come from; its `state_dict` belongs in the checkpoint.

    Raises:
        UserError: If there are fewer than 2 steps, a step has no mass, or the rank is not one of the
            processes.
    """

    def __init__(
        self, proposal: Proposal, steps: int, *, seed: int = 0, rank: int = 0, world_size: int = 1
    ) -> None:
        drawn = step_masses(proposal.density or proposal.target, steps)
        wanted = step_masses(proposal.target, steps)
        if not (drawn > 0).all():
            missed = int((drawn <= 0).nonzero()[0])
            raise UserError(
                f"{proposal.density or proposal.target} never draws step {missed}, but these trainers need a"
                " positive weight for each: give the density a floor with mixture(..., 0.05)"
            )
        self.draws = Draws(proposal, seed=seed, rank=rank, world_size=world_size)
        self.steps = steps
        self._masses = drawn
        self._weights = (wanted / drawn).float() if proposal.density is not None else torch.ones(steps)

    def weights(self) -> NDArray[np.float64]:
        """How likely each step is, times the number of steps, (steps,)."""
        return (self._masses * self.steps).numpy()

    def sample(self, batch_size: int, device: str | torch.device) -> tuple[Tensor, Tensor]:
        """Draw steps.

        Args:
            batch_size: How many, for this process.
            device: Where they go.

        Returns:
            Steps (batch_size,) int64, and what to multiply their losses by, (batch_size,) float32.
        """
        t = self.draws.next(batch_size).t
        index = ((1 - t.double()) * self.steps).long().clamp(0, self.steps - 1)
        return index.to(device), self._weights[index].to(device)


def step_masses(density: Density, steps: int) -> Tensor:
    """The density's mass for each step, least noise first, (steps,) float64.

    Raises:
        UserError: If there are fewer than 2 steps.
    """
    if steps < 2:
        raise UserError(f"steps = {steps} must be at least 2")
    edges = torch.arange(steps + 1, dtype=torch.float64) / steps
    return density.cdf(edges).diff().flip(0)


def _export(subject: Subject, options: Options) -> Export:
    subject.need("guided-diffusion", (DdpmLinear, DdpmCosine), ("noise", "data"))
    steps = options.steps or _STEPS
    if isinstance(subject.interpolant, Discrete):
        steps = subject.interpolant.steps
        if options.steps not in (None, steps):
            raise UserError(
                f"{subject.name} was designed for {steps} steps, not {options.steps}: leave --steps out"
            )
    sampler = StepSampler(subject.proposal(), steps)
    masses = step_masses(subject.density, steps)
    edges = (torch.arange(steps + 1, dtype=torch.float64) / steps).tolist()
    drawn = Piecewise(edges, masses.flip(0).tolist())
    kept = subject.target is not None
    return Export(
        "guided-diffusion counts steps from the least noise: step i of N stands for t between"
        " 1 - (i + 1)/N and 1 - i/N",
        "from flowtempo.interop import StepSampler, load_proposal\n"
        f"schedule_sampler = StepSampler({subject.python()}, {steps}, seed=0)",
        drawn,
        distance(subject.density, drawn),
        notes=(
            "losses are weighted, the objective is kept" if kept else "weights are 1, the objective moves",
            "with several processes also give rank= and world_size=",
        ),
        table={
            "step": list(range(steps)),
            "probability": masses.tolist(),
            "weight": sampler._weights.tolist(),
        },
    )


GUIDED_DIFFUSION = Target(
    "a ScheduleSampler for guided-diffusion and improved-diffusion",
    _export,
    frozenset({"steps"}),
    "probability and weight of each step",
)
