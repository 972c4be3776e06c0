"""Every target, on densities tilted to either end: what the trainer draws with the exported settings has the
distance that is printed, and leans to the same end.

The trainers' formulas are those of kohya-ss/sd-scripts@48d368f, kohya-ss/musubi-tuner@30c658c,
bghira/SimpleTuner@bc8e6ab, sihyun-yu/REPA@2b8c181 and openai/guided-diffusion@652888e; diffusers'
function and scheduler, flow_matching and torchcfm are the real ones.
"""

import shlex
from types import SimpleNamespace

import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler
from diffusers.training_utils import compute_density_for_timestep_sampling
from torchcfm import ConditionalFlowMatcher

from flowtempo.errors import UserError
from flowtempo.interop import TARGETS, Options, export, read_subject
from flowtempo.interpolants import shift

COUNT = 100_000
U = (torch.arange(COUNT, dtype=torch.float64) + 0.5) / COUNT
Z = torch.special.ndtri(U)
STEPS = 1000

DENSITIES = {
    "to noise": "mixture(logit_normal(-1.5, 0.8), 0.05)",
    "to data": "mixture(logit_normal(1.5, 0.8), 0.05)",
    "shifted": "shifted(uniform, 3)",
    "beta": "beta(2, 5)",
    "mode": "shifted(mode(1.29), 2)",
    "band": "truncated(uniform, 0.7, 0.9)",
}


def options_of(settings):
    words = shlex.split(settings)
    pairs = {}
    for index, word in enumerate(words):
        if word.startswith("--"):
            value = words[index + 1] if index + 1 < len(words) else "--"
            pairs[word[2:]] = True if value.startswith("--") else value
    return pairs


def towards_noise(sigma, factor):
    return factor * sigma / (1 + (factor - 1) * sigma)


def scheme(options):
    """u as sd-scripts, musubi-tuner and diffusers draw it."""
    if options["weighting_scheme"] == "logit_normal":
        return torch.sigmoid(float(options["logit_mean"]) + float(options["logit_std"]) * Z)
    if options["weighting_scheme"] == "mode":
        return 1 - U - float(options["mode_scale"]) * (torch.cos(torch.pi * U / 2) ** 2 - 1 + U)
    assert options["weighting_scheme"] in ("none", "uniform")
    return U


def falling_steps(u, factor):
    """The sigma of step u N of a scheduler whose steps fall from noise to data."""
    sigmas = FlowMatchEulerDiscreteScheduler(num_train_timesteps=STEPS, shift=factor).sigmas[:STEPS]
    return sigmas[(u * STEPS).long().clamp(max=STEPS - 1)].double()


def kohya(options, sigma_shift):
    if options["timestep_sampling"] == "uniform":
        return U
    factor = float(options.get("discrete_flow_shift", 1))
    if options["timestep_sampling"] == "shift":
        return towards_noise(torch.sigmoid(float(options["sigmoid_scale"]) * Z), factor)
    assert options["timestep_sampling"] == "sigma"
    return falling_steps(scheme(options), factor if sigma_shift else 1.0)


def sd_scripts(made, _):
    return 1 - kohya(options_of(made.settings), sigma_shift=True)


def musubi_tuner(made, _):
    options = options_of(made.settings)
    assert not (options["timestep_sampling"] == "sigma" and "discrete_flow_shift" in options)
    return 1 - kohya(options, sigma_shift=False)


def sd_scripts_sd3(made, _):
    options = options_of(made.settings)
    u = towards_noise(scheme(options), float(options["training_shift"]))
    return 1 - (u * STEPS).long() / STEPS


def simpletuner(made, _):
    options = options_of(made.settings)
    if "flow_use_uniform_schedule" in options:
        sigma = U
    elif "flow_use_beta_schedule" in options:
        torch.manual_seed(0)
        exponents = (float(options[f"flow_beta_schedule_{name}"]) for name in ("alpha", "beta"))
        sigma = torch.distributions.Beta(*exponents).sample((COUNT,)).double()
    else:
        sigma = torch.sigmoid(float(options["flow_sigmoid_scale"]) * Z)
    return 1 - towards_noise(sigma, float(options["flow_schedule_shift"]))


def diffusers(made, scheduler_shift):
    options = options_of(made.settings)
    numbers = {name: float(value) for name, value in options.items() if name != "weighting_scheme"}
    u = compute_density_for_timestep_sampling(
        options["weighting_scheme"], COUNT, generator=torch.Generator().manual_seed(0), **numbers
    )
    return 1 - falling_steps(u, scheduler_shift or 1.0)


def run(made, **names):
    exec(made.settings, names)
    return names


def sit(made, _):
    transport = SimpleNamespace()
    run(made, transport=transport)
    return transport.sample(torch.zeros(COUNT, 1))[0].double()


def repa(made, _):
    time_input = run(made, images=torch.zeros(COUNT, 1))["time_input"]
    assert time_input.shape == (COUNT, 1, 1, 1)
    return 1 - time_input.flatten().double()


def flow_matching(made, _):
    x = torch.zeros(COUNT, 1)
    return run(made, x_0=x, x_1=x + 1, loss_of_each_sample=x[:, 0])["sample"].x_t.flatten().double()


def torchcfm(made, _):
    x = torch.zeros(COUNT, 1)
    matcher = ConditionalFlowMatcher(sigma=0.0)
    names = run(made, matcher=matcher, x0=x, x1=x + 1, loss_of_each_sample=x[:, 0])
    return names["xt"].flatten().double()


def guided_diffusion(made, _):
    sampler = run(made)["schedule_sampler"]
    steps, weights = sampler.sample(COUNT, "cpu")
    assert weights.unique().tolist() == [1.0]
    assert sampler.weights().shape == (STEPS,)
    return 1 - (steps.double() + 0.5) / STEPS


def table(made, _):
    columns = made.table
    level, quantile = (torch.tensor(columns[name], dtype=torch.float64) for name in ("t", "quantile"))
    index = torch.searchsorted(level, U).clamp(1, len(level) - 1)
    part = (U - level[index - 1]) / (level[index] - level[index - 1])
    return quantile[index - 1] + part * (quantile[index] - quantile[index - 1])


TRAINERS = {
    "diffusers": diffusers,
    "sd-scripts": sd_scripts,
    "sd-scripts-sd3": sd_scripts_sd3,
    "musubi-tuner": musubi_tuner,
    "simpletuner": simpletuner,
    "sit": sit,
    "repa": repa,
    "flow_matching": flow_matching,
    "torchcfm": torchcfm,
    "guided-diffusion": guided_diffusion,
    "table": table,
}


def test_every_target_is_here():
    assert TRAINERS.keys() == TARGETS.keys()


@pytest.mark.parametrize("what", DENSITIES.values(), ids=DENSITIES)
@pytest.mark.parametrize("to", TRAINERS)
def test_what_is_drawn_has_the_printed_distance(to, what):
    shifts = (None, 3.0) if to == "diffusers" else (None,)
    if to == "guided-diffusion" and "truncated" in what:
        with pytest.raises(UserError, match="give the density a floor"):
            export(read_subject(what), to)
        return
    for scheduler_shift in shifts:
        subject = read_subject(what)
        made = export(subject, to, Options(shift=scheduler_shift))
        drawn = TRAINERS[to](made, scheduler_shift).sort().values
        assert float((drawn - made.density.quantile(U)).abs().mean()) < 0.003
        assert float((drawn - subject.density.quantile(U)).abs().mean()) == pytest.approx(
            made.distance.wasserstein, abs=0.003
        )
        assert [fit.distance.wasserstein >= made.distance.wasserstein - 1e-4 for fit in made.others] == [
            True
        ] * len(made.others)


@pytest.mark.parametrize("to", TRAINERS)
def test_a_density_tilted_to_noise_is_drawn_at_the_trainers_noise_end(to):
    for what, low in (
        ("mixture(logit_normal(-2, 0.5), 0.01)", True),
        ("mixture(logit_normal(2, 0.5), 0.01)", False),
    ):
        drawn = TRAINERS[to](export(read_subject(what), to), None)
        assert (float(drawn.mean()) < 0.2) is low
        assert (float(drawn.mean()) > 0.8) is not low


def test_the_simulated_shift_is_flowtempos():
    assert torch.allclose(1 - towards_noise(1 - U, 3.0), shift(U, 3.0), rtol=0, atol=1e-14)
