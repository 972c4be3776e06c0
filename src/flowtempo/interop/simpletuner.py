"""bghira/SimpleTuner: flags.

Facts are those of bghira/SimpleTuner@bc8e6ab (simpletuner/helpers/models/common.py, `sample_flow_sigmas`, and
helpers/training/custom_schedule.py): it mixes (1 - sigma) data + sigma noise; sigma is
sigmoid(flow_sigmoid_scale z), uniform, or Beta(alpha, beta), and in each case shifted by flow_schedule_shift
afterwards. `flow_custom_timesteps` draws from a list without a shift.
"""

from __future__ import annotations

import torch

from flowtempo.interop import families
from flowtempo.interop.export import Export, Options, Target, by_flags
from flowtempo.interop.families import Family
from flowtempo.interop.subject import Subject
from flowtempo.interpolants import Linear

_FAMILIES = (
    Family(
        "--flow_use_uniform_schedule --flow_schedule_shift {}",
        families.shifted_uniform_numbers,
        families.shifted_uniform,
    ),
    Family(
        "--flow_sigmoid_scale {} --flow_schedule_shift {}",
        families.scale_and_shift,
        families.scaled_and_shifted,
    ),
    Family(
        "--flow_use_beta_schedule --flow_beta_schedule_alpha {} --flow_beta_schedule_beta {}"
        " --flow_schedule_shift 1",
        families.noise_beta_numbers,
        families.noise_beta,
    ),
)
_LIST = 256


def _export(subject: Subject, options: Options) -> Export:
    subject.need_density_only(
        "SimpleTuner's flags", "design with --rule paper, or use flowtempo's own training"
    )
    subject.need("SimpleTuner", (Linear,), ("velocity",))
    count = options.steps or _LIST
    u = (torch.arange(count, dtype=torch.float64) + 0.5) / count
    return by_flags(
        _FAMILIES,
        subject,
        "SimpleTuner counts sigma = 1 - t: a shift above 1 draws more noise, and the exponents of its beta"
        " density stand for sigma",
        (
            f"for the density itself write {count} sigmas with --output sigmas.json and give the list as"
            " --flow_custom_timesteps, with --flow_timesteps_mode round-robin for even coverage",
        ),
        {"sigma": (1 - subject.density.quantile(u)).tolist()},
    )


SIMPLETUNER = Target(
    "flags of bghira/SimpleTuner",
    _export,
    frozenset({"steps"}),
    "equally likely sigmas, for --flow_custom_timesteps",
)
