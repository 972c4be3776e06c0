"""The sections of a training run's configuration: objective, times, optimizer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from flowtempo.data import OptimalTransport, coupling
from flowtempo.densities import parse
from flowtempo.errors import UserError
from flowtempo.interpolants import interpolant
from flowtempo.objectives import MultiSample, Objective, multi_sample, weighting
from flowtempo.predictions import Prediction
from flowtempo.timesteps import (
    AdaptiveProposal,
    CurriculumProposal,
    Proposal,
    Proposing,
    Spacing,
    adaptation,
    curriculum,
)


@dataclass(frozen=True)
class ObjectiveConfig:
    """What is optimised at one time t; `timesteps.target` says over which times it is averaged.

    Args:
        interpolant: The path between noise and data, as text: linear, trigonometric, variance_preserving,
            ddpm_linear, shifted(linear, 3) and others.
        prediction: What the network's output stands for.
        direction: Coefficient of the velocity-direction loss (FasterDiT, arXiv:2410.10356); 0 leaves it out.
        weighting: Weight of the loss over the noise axis, as text: min_snr(5), p2(1, 1) and others; null
            counts the loss of the prediction as it is.
        learned_uncertainty: Divide the loss by its learned mean at each noise level (EDM2, arXiv:2312.02696).
        multi_sample: Average the target over several images, as text: multi_sample(256, 0) (StableVM); null
            does not.
        coupling: Pair noise and images, as text: optimal_transport(256) or optimal_transport_by_label(256);
            null leaves them independent.
    """

    interpolant: str = "linear"
    prediction: Prediction = "velocity"
    direction: float = 0.0
    weighting: str | None = None
    learned_uncertainty: bool = False
    multi_sample: str | None = None
    coupling: str | None = None

    def build_multi_sample(self) -> MultiSample | None:
        """The multi-sample target that these settings describe, if any."""
        return None if self.multi_sample is None else multi_sample(self.multi_sample)

    def build_coupling(self) -> OptimalTransport | None:
        """The coupling that these settings describe, if any."""
        return None if self.coupling is None else coupling(self.coupling)

    def build(self) -> Objective:
        """The objective that these settings describe."""
        weights = None if self.weighting is None else weighting(self.weighting)
        return Objective(interpolant(self.interpolant), self.prediction, self.direction, weights)


@dataclass(frozen=True)
class TimestepConfig:
    """Where on the noise axis times are drawn. t = 0 is noise, t = 1 is data.

    Args:
        target: The density that the objective is averaged over, as text: uniform, logit_normal(0, 1),
            mixture(logit_normal(0, 1), 0.1), truncated(uniform, 0.01, 0.99) or a density.json file.
        density: Draw from this density instead and weight each loss by target/density, which keeps the
            objective and changes only its variance. null draws from the target itself.
        spacing: stratified puts one draw of the global batch in each of batch_size equal parts of the
            density; independent draws freely.
        adaptive: Draw from a density that follows what training measures, in place of `density`, as text:
            loss_second_moment, or gradient_second_moment with probe_every.
        curriculum: Draw from a density that changes over the run, in place of `density`, as text:
            switch(logit_normal(-0.75, 1), uniform, 0.3) or clts.
        moves_objective: With `adaptive` or `curriculum`: leave out the weights, so that the objective is
            averaged over what is drawn and no longer over `target`.
    """

    target: str = "uniform"
    density: str | None = None
    spacing: Spacing = "independent"
    adaptive: str | None = None
    curriculum: str | None = None
    moves_objective: bool = False

    def build(self, steps: int) -> Proposing:
        """The proposal that these settings describe, for a run of `steps` steps.

        Raises:
            UserError: If a text is wrong, settings exclude each other, or one has no effect.
        """
        given = [key for key in ("density", "adaptive", "curriculum") if getattr(self, key) is not None]
        if len(given) > 1:
            raise UserError(
                f"timesteps.{given[0]} and timesteps.{given[1]} both say what is drawn from: leave one out"
            )
        if self.moves_objective and given not in (["adaptive"], ["curriculum"]):
            raise UserError(
                "timesteps.moves_objective has no effect without timesteps.adaptive or timesteps.curriculum: "
                "to move the objective to a fixed density, name it in timesteps.target"
            )
        target = parse(self.target)
        if self.adaptive is not None:
            following = adaptation(self.adaptive)
            return AdaptiveProposal(target, following, self.spacing, moves_objective=self.moves_objective)
        if self.curriculum is not None:
            if self.moves_objective and self.target != TimestepConfig.target:
                raise UserError(
                    f"timesteps.target {self.target} has no effect on a curriculum that moves the objective: "
                    "leave it out"
                )
            course = curriculum(self.curriculum)
            return CurriculumProposal(
                target, course, steps, self.spacing, moves_objective=self.moves_objective
            )
        return Proposal(target, None if self.density is None else parse(self.density), self.spacing)


@dataclass(frozen=True)
class OptimizerConfig:
    """AdamW.

    Args:
        lr: Learning rate after warm-up.
        betas: Decay rates of the two moments.
        weight_decay: Decoupled weight decay, on every parameter.
        warmup_steps: Steps over which the learning rate rises linearly from 0.
        lr_schedule: constant, or cosine down to 0 at the last step.
        clip_norm: Scale gradients down to this global norm; null does not.
    """

    lr: float = 1e-4
    betas: tuple[float, float] = (0.9, 0.999)
    weight_decay: float = 0.0
    warmup_steps: int = 0
    lr_schedule: Literal["constant", "cosine"] = "constant"
    clip_norm: float | None = None
