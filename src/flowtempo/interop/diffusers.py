"""huggingface/diffusers: flags of its SD3 and Flux training scripts, their sampling function, sigma tables.

The scripts draw u with `compute_density_for_timestep_sampling`, take the step u N of
`FlowMatchEulerDiscreteScheduler.timesteps` and mix (1 - sigma) data + sigma noise with the sigma of that
step. The steps fall from noise to data. So u = 0 is noise although sigma = 1 is: u counts as flowtempo's t
does, before the scheduler's shift (diffusers 0.42.1).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from flowtempo.densities import Density, LogitNormal, Mode, Uniform
from flowtempo.densities.base import open_interval
from flowtempo.errors import UserError
from flowtempo.interop import families
from flowtempo.interop.draws import Draws
from flowtempo.interop.export import Export, Options, Target, by_flags
from flowtempo.interop.families import Family, moved
from flowtempo.interop.subject import Subject
from flowtempo.interpolants import Linear, shift
from flowtempo.interpolants.shifts import check_shift
from flowtempo.timesteps import Proposal

_STEPS = 1000
_DRAWN_BY_SCHEME = ("logit_normal", "mode")


class TimestepDensity:
    """Stands in for `diffusers.training_utils.compute_density_for_timestep_sampling`.

    Put it in the place of that function in a training script; `rank` and `world_size` are the accelerator's.
    It gives the script's u, so that the sigma that the scheduler then looks up follows the proposal.

    Args:
        proposal: Where times are drawn; it must draw from its target, since the scripts have no place for
            importance weights.
        scheduler_shift: The shift of the script's scheduler (3 for SD3; 1 where the shift is dynamic).
        seed: The run's seed.
        rank: This process's number.
        world_size: How many processes there are.

    Attributes:
        draws: Where the times come from; its `state_dict` belongs in the checkpoint.

    Raises:
        UserError: If the proposal needs weights, or a number is out of range.
    """

    def __init__(
        self,
        proposal: Proposal,
        *,
        scheduler_shift: float = 1.0,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        if proposal.density is not None:
            raise UserError(
                "diffusers' scripts have no place for importance weights: draw from the target, or multiply"
                " the loss by the weights of flowtempo.interop.Draws"
            )
        check_shift(scheduler_shift)
        self.scheduler_shift = scheduler_shift
        self.draws = Draws(proposal, seed=seed, rank=rank, world_size=world_size)

    def __call__(
        self,
        weighting_scheme: str | None = None,
        batch_size: int = 1,
        logit_mean: float | None = None,
        logit_std: float | None = None,
        mode_scale: float | None = None,
        device: torch.device | str = "cpu",
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Draw u.

        Args:
            weighting_scheme: `none`, or one that only weights the loss (`sigma_sqrt`, `cosmap`).
            batch_size: How many.
            logit_mean: Not used, as under those schemes in diffusers.
            logit_std: Not used.
            mode_scale: Not used.
            device: Where the result goes.
            generator: Seeds this draw if it is given; the counter of steps is not used then.

        Returns:
            (batch_size,) float32 in (0, 1).

        Raises:
            UserError: If the scheme asks for another density.
        """
        if weighting_scheme in _DRAWN_BY_SCHEME:
            raise UserError(
                f"weighting_scheme = {weighting_scheme} asks for another density than the one given here:"
                " start the script with --weighting_scheme none"
            )
        if generator is None:
            times = self.draws.next(batch_size, device)
        else:
            seed = int(torch.randint(1 << 62, (), generator=generator, device=generator.device))
            times = self.draws.proposal.at(0).draw(batch_size, step=0, seed=seed, device=device)
        return open_interval(shift(times.t, 1 / self.scheduler_shift))


def sigma_table(density: Density, count: int, scheduler_shift: float = 1.0) -> tuple[Tensor, Tensor]:
    """Equally likely noise levels, from noise to data, for a scheduler of diffusers.

    Args:
        density: The density of t.
        count: How many.
        scheduler_shift: The shift of the scheduler that gets them.

    Returns:
        Sigmas before the scheduler's shift, which `set_timesteps(sigmas=...)` applies, and after it, each
        (count,) float64.
    """
    t = density.quantile((torch.arange(count, dtype=torch.float64) + 0.5) / count)
    return 1 - shift(t, 1 / scheduler_shift), 1 - t


def _families(scheduler_shift: float) -> tuple[Family, ...]:
    log_shift = math.log(scheduler_shift)

    def numbers(density: Density) -> tuple[float, float]:
        mean, std = families.logit_normal_numbers(density)
        return mean + log_shift, std

    return (
        Family("--weighting_scheme none", families.no_numbers, lambda: moved(Uniform(), scheduler_shift)),
        Family(
            "--weighting_scheme logit_normal --logit_mean {} --logit_std {}",
            numbers,
            lambda mean, std: LogitNormal(mean - log_shift, std),
        ),
        Family(
            "--weighting_scheme mode --mode_scale {}",
            families.mode_numbers(scheduler_shift),
            lambda scale: moved(Mode(scale), scheduler_shift),
        ),
    )


def _export(subject: Subject, options: Options) -> Export:
    subject.need_density_only(
        "diffusers' flags",
        "design with --rule paper, or multiply the script's loss by the weights of flowtempo.interop.Draws",
    )
    subject.need("diffusers", (Linear,), ("velocity",))
    scheduler_shift = 1.0 if options.shift is None else options.shift
    check_shift(scheduler_shift)
    before, after = sigma_table(subject.density, options.steps or _STEPS, scheduler_shift)
    said = "" if options.shift is not None else " (SD3's is 3: give --shift 3)"
    return by_flags(
        _families(scheduler_shift),
        subject,
        "diffusers counts sigma = 1 - t, but its scripts draw u, which picks from steps that fall from noise"
        " to data: logit_mean has the sign of flowtempo's mean",
        (
            f"for a scheduler with a shift of {scheduler_shift:g}{said}",
            "its 1000 steps move a time by at most 0.001",
            "SD3's scripts train the velocity only with --precondition_outputs 0",
            "the density itself: flowtempo.interop.diffusers.TimestepDensity in place of"
            " compute_density_for_timestep_sampling",
        ),
        {"sigma": before.tolist(), "shifted_sigma": after.tolist()},
    )


DIFFUSERS = Target(
    "flags of huggingface/diffusers' SD3 and Flux scripts",
    _export,
    frozenset({"shift", "steps"}),
    "equally likely sigmas",
)
