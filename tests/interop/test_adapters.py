"""What stands in for the trainers' own functions: directions, shifts, weights, processes, resuming."""

import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler

from flowtempo.densities import LogitNormal, Mixture, Uniform
from flowtempo.errors import UserError
from flowtempo.interop import (
    Draws,
    RepaTimes,
    StepSampler,
    TimestepDensity,
    TransportSample,
    convert_time,
    convert_velocity_model,
    from_scheduler,
    sigma_table,
    to_scheduler,
)
from flowtempo.interpolants import INTERPOLANTS, Linear, interpolant
from flowtempo.timesteps import Proposal

TILTED = LogitNormal(-1.0, 0.7)
KEPT = Proposal(Uniform(), Mixture(LogitNormal(-1.0, 0.7), 0.1))


def test_both_directions_of_time_give_the_same_image_and_opposite_velocities():
    generator = torch.Generator().manual_seed(0)
    data, noise = torch.randn(2, 8, 3, generator=generator, dtype=torch.float64)
    t = torch.rand(8, generator=generator, dtype=torch.float64)
    tau = convert_time(t, "data_time", "noise_time")
    x = (1 - tau[:, None]) * data + tau[:, None] * noise
    assert torch.allclose(Linear().mix(data, noise, t), x, rtol=0, atol=1e-15)

    def theirs(x, time):
        assert torch.equal(time, tau)
        return noise - data

    ours = convert_velocity_model(theirs, "noise_time", "data_time")(x, t)
    assert torch.equal(ours, Linear().velocity(data, noise, t))


def test_processes_share_one_stratified_batch_and_a_resumed_one_goes_on():
    proposal = Proposal(TILTED, spacing="stratified")
    whole = Draws(proposal, seed=3)
    ranks = [Draws(proposal, seed=3, rank=rank, world_size=2) for rank in range(2)]
    for _ in range(2):
        assert torch.equal(torch.cat([each.next(8).t for each in ranks]), whole.next(16).t)
    resumed = Draws(proposal, seed=3)
    resumed.load_state_dict(whole.state_dict())
    assert torch.equal(resumed.next(16).t, whole.next(16).t)


@pytest.mark.parametrize("factor", [1.0, 3.0])
def test_diffusers_looks_up_the_sigmas_of_the_density(factor):
    scheduler = FlowMatchEulerDiscreteScheduler(shift=factor)
    draw = TimestepDensity(Proposal(TILTED, spacing="stratified"), scheduler_shift=factor)
    u = draw(weighting_scheme="none", batch_size=20_000)
    t = 1 - scheduler.sigmas[(u * 1000).long()].double().sort(descending=True).values
    levels = (torch.arange(20_000, dtype=torch.float64) + 0.5) / 20_000
    assert float((t - TILTED.quantile(levels)).abs().mean()) < 0.001
    first, second = (draw("none", 4, generator=torch.Generator().manual_seed(1)) for _ in range(2))
    assert torch.equal(first, second)
    before, after = sigma_table(TILTED, 50, factor)
    scheduler.set_timesteps(sigmas=before.tolist())
    assert torch.allclose(scheduler.sigmas[:-1].double(), after, rtol=0, atol=1e-6)
    with pytest.raises(UserError, match="--weighting_scheme none"):
        draw("logit_normal", 4, 0.0, 1.0)


def test_steps_are_weighted_by_the_masses_so_that_the_objective_is_kept():
    sampler = StepSampler(KEPT, 50)
    chance = torch.from_numpy(sampler.weights()) / 50
    steps, weights = sampler.sample(40_000, "cpu")
    assert torch.allclose(weights.double(), 1 / (50 * chance[steps]), rtol=1e-6)
    assert torch.allclose(steps.bincount(minlength=50) / 40_000, chance.float(), atol=0.006)
    # Step 0 is the least noise, and the density is tilted to the noise.
    assert chance[0] < chance[-1]


@pytest.mark.parametrize("stand_in", [TimestepDensity, TransportSample, RepaTimes])
def test_no_weight_is_dropped_in_silence(stand_in):
    with pytest.raises(UserError, match="no place for importance weights"):
        stand_in(KEPT)


def test_transport_keeps_times_wide_and_the_data_as_it_is():
    x1 = torch.ones(512, 2, dtype=torch.bfloat16)
    t, x0, same = TransportSample(Proposal(LogitNormal(20.0, 1.0)))(x1)
    assert same is x1
    assert x0.dtype == x1.dtype
    assert t.dtype == torch.float32
    assert float(t.max()) < 1


@pytest.mark.parametrize(
    "form", ["linear", "trigonometric", "linear_vp", "polynomial(2)", "variance_preserving"]
)
def test_flow_matchings_schedulers_are_our_interpolants(form):
    module = pytest.importorskip("flow_matching.path.scheduler.scheduler")
    names = {
        "linear": "CondOTScheduler()",
        "trigonometric": "CosineScheduler()",
        "linear_vp": "LinearVPScheduler()",
        "polynomial(2)": "PolynomialConvexScheduler(2)",
        "variance_preserving": "VPScheduler()",
    }
    theirs, path = eval(f"module.{names[form]}", {"module": module}), interpolant(form)
    assert from_scheduler(theirs) == path
    assert from_scheduler(to_scheduler(path)) is path
    t = torch.linspace(0.01, 0.99, 33, dtype=torch.float64)
    ours, own = to_scheduler(path)(t), theirs(t)
    for name in ("alpha_t", "sigma_t", "d_alpha_t", "d_sigma_t"):
        assert torch.allclose(getattr(ours, name), getattr(own, name), rtol=1e-9, atol=1e-12), name
    snr = own.alpha_t / own.sigma_t
    assert torch.allclose(to_scheduler(path).snr_inverse(snr), t, rtol=0, atol=1e-9)


def test_a_scheduler_of_ones_own_is_called_for_its_values():
    module = pytest.importorskip("flow_matching.path.scheduler.scheduler")
    own = type("Own", (module.CosineScheduler,), {})()
    path, same = from_scheduler(own), INTERPOLANTS["trigonometric"]()
    t = torch.linspace(0.01, 0.99, 33, dtype=torch.float64)
    for name in ("alpha", "sigma", "d_alpha", "d_sigma", "wronskian", "log_snr"):
        assert torch.allclose(getattr(path, name)(t), getattr(same, name)(t), rtol=1e-12), name
    assert torch.allclose(path.time(path.log_snr(t)), t, rtol=0, atol=1e-12)
    with pytest.raises(UserError, match="not a Scheduler"):
        from_scheduler(3)
