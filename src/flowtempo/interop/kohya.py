"""kohya-ss/sd-scripts and kohya-ss/musubi-tuner: flags.

Facts are those of kohya-ss/sd-scripts@48d368f (library/flux_train_utils.py, library/sd3_train_utils.py) and
kohya-ss/musubi-tuner@30c658c (training/trainer_base.py): both mix (1 - sigma) data + sigma noise. Under
`shift` sigma is sigmoid(sigmoid_scale z), shifted by discrete_flow_shift. Under `sigma` a number u, drawn as
weighting_scheme says, picks the step u N of a list that falls from noise to data, so that u counts as t does;
in sd-scripts that list is shifted by discrete_flow_shift, in musubi-tuner it is not. SD3 in sd-scripts takes
u as sigma, and shifts it by training_shift.
"""

from __future__ import annotations

from flowtempo.densities import Density, LogitNormal, Mode, Uniform
from flowtempo.interop import families
from flowtempo.interop.export import Export, Options, Target, by_flags
from flowtempo.interop.families import Family
from flowtempo.interop.subject import Subject
from flowtempo.interpolants import Linear

_INSTEAD = "design with --rule paper, or use flowtempo's own training"
_UNIFORM = Family("--timestep_sampling uniform", families.no_numbers, Uniform)
_SHIFT = Family(
    "--timestep_sampling shift --sigmoid_scale {} --discrete_flow_shift {}",
    families.scale_and_shift,
    families.scaled_and_shifted,
)
_SD_SCRIPTS = (
    _UNIFORM,
    Family(
        "--timestep_sampling sigma --weighting_scheme none --discrete_flow_shift {}",
        families.shifted_uniform_numbers,
        families.shifted_uniform,
    ),
    _SHIFT,
    Family(
        "--timestep_sampling sigma --weighting_scheme mode --mode_scale {} --discrete_flow_shift {}",
        families.shifted_mode_numbers,
        families.shifted_mode,
    ),
)
_MUSUBI = (
    _UNIFORM,
    _SHIFT,
    Family(
        "--timestep_sampling sigma --weighting_scheme mode --mode_scale {}", families.mode_numbers(), Mode
    ),
)


def _noise_logit_normal_numbers(density: Density) -> tuple[float, float]:
    mean, std = families.logit_normal_numbers(density)
    return -mean, std


def _noise_logit_normal(mean: float, std: float) -> Density:
    return LogitNormal(-mean, std)


_SD3 = (
    Family(
        "--weighting_scheme uniform --training_shift {}",
        families.shifted_uniform_numbers,
        families.shifted_uniform,
    ),
    Family(
        "--weighting_scheme logit_normal --logit_mean {} --logit_std {} --training_shift 1",
        _noise_logit_normal_numbers,
        _noise_logit_normal,
    ),
    Family(
        "--weighting_scheme mode --mode_scale {} --training_shift {}",
        families.shifted_mode_numbers,
        families.shifted_mode,
    ),
)


def _checked(subject: Subject, trainer: str) -> None:
    subject.need_density_only(f"{trainer}'s flags", _INSTEAD)
    subject.need(trainer, (Linear,), ("velocity",))


def _sd_scripts(subject: Subject, options: Options) -> Export:
    _checked(subject, "sd-scripts")
    return by_flags(
        _SD_SCRIPTS,
        subject,
        "sd-scripts counts sigma = 1 - t: a shift above 1 draws more noise",
        (
            "for FLUX.1, Lumina, HunyuanImage and Anima; for SD3 export to sd-scripts-sd3",
            "FLUX.1 learns the velocity only with --model_prediction_type raw",
        ),
    )


def _sd_scripts_sd3(subject: Subject, options: Options) -> Export:
    _checked(subject, "sd-scripts")
    return by_flags(
        _SD3,
        subject,
        "sd-scripts counts sigma = 1 - t and for SD3 draws sigma itself: logit_mean has the other sign, a"
        " shift above 1 draws more noise",
        ("its 1000 steps move a time by at most 0.001",),
    )


def _musubi(subject: Subject, options: Options) -> Export:
    _checked(subject, "musubi-tuner")
    return by_flags(_MUSUBI, subject, "musubi-tuner counts sigma = 1 - t: a shift above 1 draws more noise")


SD_SCRIPTS = Target("flags of kohya-ss/sd-scripts for FLUX.1, Lumina, HunyuanImage and Anima", _sd_scripts)
SD_SCRIPTS_SD3 = Target("flags of kohya-ss/sd-scripts for SD3", _sd_scripts_sd3)
MUSUBI = Target("flags of kohya-ss/musubi-tuner", _musubi)
