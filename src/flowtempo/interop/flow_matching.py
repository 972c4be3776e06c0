"""facebookresearch/flow_matching: its Scheduler from our interpolants and back; times for it and torchcfm.

Facts are those of facebookresearch/flow_matching@11568d3 (flow_matching/path/scheduler/scheduler.py) and
atong01/conditional-flow-matching@cacd4dc: both count t = 1 as data and mix alpha x_1 + sigma x_0. The
package is imported when it is needed.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any, ClassVar, final

import torch
from torch import Tensor

from flowtempo.errors import UserError
from flowtempo.interop.export import Export, Options, Target, exactly
from flowtempo.interop.subject import Subject
from flowtempo.interpolants import (
    Interpolant,
    Linear,
    LinearVP,
    Polynomial,
    Trigonometric,
    VariancePreserving,
)
from flowtempo.interpolants.base import wide

_MODULE = "flow_matching.path.scheduler.scheduler"


def to_scheduler(path: Interpolant) -> Any:
    """An interpolant as a `Scheduler` of flow_matching, for `AffineProbPath(scheduler)`.

    Raises:
        UserError: If the package is not installed.
    """
    module = _package()

    class FlowtempoScheduler(module.Scheduler):  # type: ignore[name-defined]
        """alpha, sigma and their derivatives of a flowtempo interpolant."""

        def __init__(self, path: Interpolant) -> None:
            self.path = path

        def __call__(self, t: Tensor) -> Any:
            return module.SchedulerOutput(
                alpha_t=self.path.alpha(t),
                sigma_t=self.path.sigma(t),
                d_alpha_t=self.path.d_alpha(t),
                d_sigma_t=self.path.d_sigma(t),
            )

        def snr_inverse(self, snr: Tensor) -> Tensor:
            # Their signal-to-noise ratio is alpha / sigma, not its square.
            return self.path.time(2 * snr.log()).clamp(0, 1)

    return FlowtempoScheduler(path)


def from_scheduler(scheduler: Any) -> Interpolant:
    """A `Scheduler` of flow_matching as an interpolant.

    Their five schedulers become the interpolants of the same formulas, which are exact at both ends; any
    other is called for its values.

    Raises:
        UserError: If the package is not installed, or it is no such scheduler.
    """
    module = _package()
    if not isinstance(scheduler, module.Scheduler):
        raise UserError(
            f"{type(scheduler).__name__} is not a Scheduler of flow_matching: give an instance of one"
        )
    kind = type(scheduler)
    if kind is module.CondOTScheduler:
        return Linear()
    if kind is module.CosineScheduler:
        return Trigonometric()
    if kind is module.LinearVPScheduler:
        return LinearVP()
    if kind is module.PolynomialConvexScheduler:
        return Polynomial(float(scheduler.n))
    if kind is module.VPScheduler:
        return VariancePreserving(float(scheduler.beta_min), float(scheduler.beta_max))
    path = getattr(scheduler, "path", None)
    return path if isinstance(path, Interpolant) else Foreign(scheduler)


@final
@dataclass(frozen=True)
class Foreign(Interpolant):
    """A scheduler of flow_matching that has no interpolant of its own here.

    It has no text form: configurations cannot name it.

    Attributes:
        scheduler: Called with t; gives alpha_t, sigma_t, d_alpha_t and d_sigma_t.
    """

    name: ClassVar[str] = "foreign"

    scheduler: Any

    def __str__(self) -> str:
        return f"foreign {type(self.scheduler).__name__}"

    def _alpha(self, t: Tensor, rest: Tensor) -> Tensor:
        return self.scheduler(t).alpha_t

    def _sigma(self, t: Tensor, rest: Tensor) -> Tensor:
        return self.scheduler(t).sigma_t

    def _d_alpha(self, t: Tensor, rest: Tensor) -> Tensor:
        return self.scheduler(t).d_alpha_t

    def _d_sigma(self, t: Tensor, rest: Tensor) -> Tensor:
        return self.scheduler(t).d_sigma_t

    def _wronskian(self, t: Tensor, rest: Tensor) -> Tensor:
        values = self.scheduler(t)
        return values.d_alpha_t * values.sigma_t - values.alpha_t * values.d_sigma_t

    def time(self, log_snr: Tensor) -> Tensor:
        """What the scheduler's `snr_inverse` gives for alpha / sigma."""
        log_snr = wide(log_snr)
        t = self.scheduler.snr_inverse((log_snr / 2).exp())
        return torch.where(log_snr == torch.inf, 1.0, torch.where(log_snr == -torch.inf, 0.0, t))


def _package() -> Any:
    try:
        return importlib.import_module(_MODULE)
    except ImportError as error:
        raise UserError(f"flow_matching cannot be imported ({error}): pip install flow_matching") from error


def _flow_matching(subject: Subject, options: Options) -> Export:
    path = subject.interpolant or Linear()
    return exactly(
        subject,
        "flow_matching counts as flowtempo does, t = 1 is data: nothing changes sign",
        "from flow_matching.path import AffineProbPath\n"
        "from flowtempo.interop import Draws, load_proposal, to_scheduler\n"
        "from flowtempo.interpolants import interpolant\n"
        f"path = AffineProbPath(to_scheduler(interpolant({str(path)!r})))\n"
        f"draws = Draws({subject.python()}, seed=0)\n"
        "times = draws.next(len(x_1), x_1.device)\n"
        "sample = path.sample(x_0=x_0, x_1=x_1, t=times.t)\n"
        "loss = (times.weight * loss_of_each_sample).mean()",
        ("with several processes also give rank= and world_size=",),
    )


def _torchcfm(subject: Subject, options: Options) -> Export:
    subject.need("torchcfm", (Linear,), ("velocity",))
    return exactly(
        subject,
        "torchcfm counts as flowtempo does, t = 1 is data: nothing changes sign",
        "from flowtempo.interop import Draws, load_proposal\n"
        f"draws = Draws({subject.python()}, seed=0)\n"
        "times = draws.next(len(x1), x1.device)\n"
        "t, xt, ut = matcher.sample_location_and_conditional_flow(x0, x1, t=times.t)\n"
        "loss = (times.weight * loss_of_each_sample).mean()",
        ("with several processes also give rank= and world_size=",),
    )


FLOW_MATCHING = Target("a Scheduler and times for facebookresearch/flow_matching", _flow_matching)
TORCHCFM = Target("times for torchcfm's sample_location_and_conditional_flow", _torchcfm)
