import dataclasses
import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from flowtempo.data import ArrayData, DataConfig, Scaling, load, load_buckets
from flowtempo.errors import UserError
from flowtempo.variance import measure


def pixels(count=40, seed=0):
    """Channels of different brightness and contrast."""
    noise = np.random.default_rng(seed).normal(size=(count, 3, 4, 5))
    spread, level = np.array([20, 40, 10]), np.array([60, 128, 200])
    return (noise * spread[:, None, None] + level[:, None, None]).clip(0, 255).astype(np.uint8)


@pytest.fixture
def save(tmp_path):
    def write(name, images):
        np.savez(tmp_path / name, images=images)
        return DataConfig("array", str(tmp_path / name), layout="nchw")

    return write


@pytest.mark.parametrize("standardise", ["whole", "channel"])
@given(st.floats(0.01, 100), st.integers(0, 100))
def test_pixels_come_back_exactly(standardise, target_std, seed):
    images = pixels(seed=seed)
    plain = ArrayData(images)
    scaling = Scaling.measured(target_std, standardise, plain.channel_mean, plain.channel_std, "x")
    data = plain.scaled(scaling)
    np.testing.assert_array_equal(data.to_uint8(data.batch(range(40))[0]), images)


def test_one_factor_for_all_channels(save):
    config = save("x.npz", pixels())
    plain, data = load(config), load(dataclasses.replace(config, target_std=0.7))
    x, z = plain.batch(range(40))[0], data.batch(range(40))[0]
    ratio = z / x
    assert float(ratio.std()) < 1e-6 * float(ratio.mean())
    assert float(z.var((0, 2, 3), correction=0).mean()) == pytest.approx(0.49, rel=1e-5)
    assert data.std == pytest.approx(0.7, rel=1e-12)
    assert plain.std != pytest.approx(0.7, rel=0.1)


def test_every_channel_for_itself(save):
    data = load(dataclasses.replace(save("x.npz", pixels()), target_std=0.5, standardise="channel"))
    z = data.batch(range(40))[0]
    torch.testing.assert_close(z.mean((0, 2, 3)), torch.zeros(3), rtol=0, atol=1e-6)
    torch.testing.assert_close(z.std((0, 2, 3), correction=0), torch.full((3,), 0.5))


@pytest.mark.parametrize("standardise", ["whole", "channel"])
def test_statistics_are_those_of_what_the_model_sees(save, standardise):
    data = load(dataclasses.replace(save("x.npz", pixels()), target_std=2.0, standardise=standardise))
    z = data.batch(range(40))[0].double()
    np.testing.assert_allclose(data.channel_mean, z.mean((0, 2, 3)), atol=1e-5)
    np.testing.assert_allclose(data.channel_std, z.std((0, 2, 3), correction=0), rtol=1e-6)
    assert data.describe()["channel_std"] == data.channel_std.tolist()


def test_latents_are_scaled_too_and_keep_their_own_units(save):
    latents = np.random.default_rng(0).normal(0.3, 5, (20, 16, 4, 4)).astype(np.float16)
    data = load(dataclasses.replace(save("x.npz", latents), target_std=1.0))
    assert data.std == pytest.approx(1)
    back = data.scaling.undo(data.batch(range(20))[0])
    torch.testing.assert_close(back, torch.from_numpy(latents).float(), rtol=1e-6, atol=1e-6)


def test_other_images_are_scaled_by_the_training_statistics(save):
    train = load(dataclasses.replace(save("train.npz", pixels()), target_std=0.5, standardise="channel"))
    recorded = Scaling.of_record(json.loads(json.dumps(train.describe())))
    assert recorded == train.scaling
    darker = save("test.npz", pixels(seed=1) // 2)
    test = load(darker, scaling=recorded)
    factor, shift = (
        0.5 / load(save("t.npz", pixels())).channel_std,
        load(save("t.npz", pixels())).channel_mean,
    )
    expected = (load(darker).batch([3])[0][0].numpy() - shift[:, None, None]) * factor[:, None, None]
    np.testing.assert_allclose(test.batch([3])[0][0], expected, rtol=1e-5, atol=1e-6)
    assert test.std < 0.4
    assert test.describe()["scaling"] == train.describe()["scaling"]


def test_images_of_a_run_without_scaling_are_left_alone(save):
    config = save("x.npz", pixels())
    plain = load(config)
    assert "scaling" not in plain.describe()
    assert Scaling.of_record(plain.describe()) == plain.scaling == Scaling()
    assert torch.equal(load(config, scaling=Scaling()).batch([0])[0], plain.batch([0])[0])
    with pytest.raises(UserError, match=r"target_std=0.5 has no effect on .*x.npz: .* images as they are"):
        load(dataclasses.replace(config, target_std=0.5), scaling=Scaling())
    scaled = dataclasses.replace(config, target_std=0.5)
    assert load(scaled, scaling=load(scaled).scaling).std == pytest.approx(0.5)
    with pytest.raises(UserError, match=r"target_std=0.7 has no effect .* images with target_std=0.5"):
        load(dataclasses.replace(config, target_std=0.7), scaling=load(scaled).scaling)


def test_the_fingerprint_is_of_the_images(save):
    """So that evaluations of runs with different scalings have the same reference."""
    config = save("x.npz", pixels())
    assert load(config).fingerprint == load(dataclasses.replace(config, target_std=0.5)).fingerprint


@pytest.mark.parametrize("standardise", ["whole", "channel"])
def test_sizes_of_latents_are_scaled_by_their_common_statistics(tmp_path, standardise):
    random = np.random.default_rng(0)
    groups = [random.normal(3, 2, (6, 2, 4, 4)), random.normal(-1, 7, (2, 2, 4, 8))]
    for group, images in enumerate(groups):
        for index, latent in enumerate(images.astype(np.float32)):
            np.savez(tmp_path / f"{group}{index}_32x32_sd3.npz", **{"latents_4x4": latent})
    config = DataConfig("sd-scripts", str(tmp_path), scale=1.0, target_std=0.5, standardise=standardise)
    buckets = load_buckets(config)
    assert len({bucket.scaling for bucket in buckets}) == 1
    values = [bucket.batch(range(len(bucket)))[0].transpose(0, 1).flatten(1) for bucket in buckets]
    whole = torch.cat(values, 1).double()
    assert float(whole.var(1, correction=0).mean()) == pytest.approx(0.25, rel=1e-5)
    if standardise == "channel":
        torch.testing.assert_close(whole.std(1, correction=0), torch.full((2,), 0.5).double())
        torch.testing.assert_close(whole.mean(1), torch.zeros(2).double(), rtol=0, atol=1e-6)


def test_the_measured_profile_moves_by_twice_the_log_of_the_ratio():
    """G of k x at log_snr is k^2 times G of x at log_snr + 2 ln k, exactly where k is a power of two."""
    latents = np.random.default_rng(0).normal(size=(64, 1, 4, 4)).astype(np.float32)
    plain = ArrayData(latents)
    data = plain.scaled(Scaling(target_std=4.0, factor=(4.0,)))
    grid = torch.linspace(-6, 6, 5, dtype=torch.float64)
    shifted = measure(data, log_snr=grid - 2 * math.log(4), noises=4)
    here = measure(plain, log_snr=grid, noises=4)
    for name in ("lower", "upper"):
        moved, mean = getattr(shifted, name).mean, getattr(here, name).mean
        torch.testing.assert_close(moved, 16 * mean, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"target_std": 0.0}, "data.target_std=0.0: give a positive number"),
        ({"target_std": math.inf}, "data.target_std=inf: give a positive number"),
        ({"standardise": "channel"}, "data.standardise=channel has no effect without data.target_std"),
        (
            {"standardise": "pixel", "target_std": 1.0},
            "data.standardise: unknown 'pixel'; known: whole, channel",
        ),
    ],
)
def test_configuration_faults(save, changes, message):
    with pytest.raises(UserError, match=message):
        load(dataclasses.replace(save("x.npz", pixels()), **changes))


def test_constant_channels(save):
    images = pixels()
    images[:, 1] = 77
    config = dataclasses.replace(save("x.npz", images), target_std=0.5)
    assert load(config).std == pytest.approx(0.5)
    with pytest.raises(UserError, match=r"x.npz: channel 1 is constant .*: use data.standardise=whole"):
        load(dataclasses.replace(config, standardise="channel"))
    config = dataclasses.replace(save("y.npz", np.full_like(images, 3)), target_std=0.5)
    with pytest.raises(UserError, match=r"channel 0, 1, 2 is constant .*: leave out data.target_std"):
        load(config)


@pytest.mark.parametrize(
    "changes",
    [{"factor": [0.0]}, {"factor": ["x"]}, {"shift": [math.nan]}, {"shift": None}, {"target_std": None}],
)
def test_a_damaged_record(changes):
    record = {"target_std": 0.5, "standardise": "whole", "shift": [0.0], "factor": [2.0]}
    assert Scaling.of_record({"name": "n", "scaling": record}).factor == (2.0,)
    with pytest.raises(UserError, match="n: the record of its scaling is damaged"):
        Scaling.of_record({"name": "n", "scaling": record | changes})


def test_other_channels_than_it_was_measured_on():
    scaling = Scaling(1.0, "channel", (0.0, 0.0), (1.0, 2.0))
    with pytest.raises(ValueError, match="2 channels and the images have 3"):
        scaling.undo(torch.zeros(1, 3, 2, 2))
