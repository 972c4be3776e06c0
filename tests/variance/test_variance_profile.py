"""Profiles: their file, their checks, and what stands between the points of the grid."""

import math
import os

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from flowtempo.errors import UserError
from flowtempo.variance import VarianceProfile

GRID = torch.linspace(-14, 14, 65, dtype=torch.float64)


def gaussian(variance, grid=GRID):
    mean = variance / (1 + variance * grid.exp())
    return VarianceProfile(
        "posterior_variance", "closed form", "estimate", grid, mean, 0.1 * mean, 3, variance
    )


@given(
    st.lists(st.floats(0, 1e300), min_size=1, max_size=8),
    st.floats(1e-300, 1e300),
    st.dictionaries(st.text(), st.one_of(st.text(), st.integers(), st.lists(st.floats(-1e9, 1e9)))),
)
def test_saved_profile_comes_back_exactly(tmp_path_factory, values, moment, data):
    path = tmp_path_factory.mktemp("profile") / "profile.json"
    grid = torch.arange(len(values), dtype=torch.float64) / 3
    curve = torch.tensor(values, dtype=torch.float64)
    profile = VarianceProfile(
        "posterior_variance", "any", "upper", grid, curve, curve.sqrt(), 7, moment, {"points": 3}, data
    )
    profile.save(path)
    loaded = VarianceProfile.load(path)
    assert loaded.to_dict() == profile.to_dict()
    assert torch.equal(loaded.mean, profile.mean)
    assert loaded.digest == profile.digest


def test_digest_depends_on_every_number():
    assert gaussian(1.0).digest == gaussian(1.0).digest
    assert gaussian(1.0).digest != gaussian(1.0 + 1e-15).digest


@pytest.mark.parametrize("variance", [1e-3, 1.0, 50.0])
def test_gaussians_are_exact_everywhere(variance):
    profile = gaussian(variance)
    assert profile.scale == pytest.approx(variance, rel=1e-12)
    log_snr = torch.cat([torch.linspace(-40, 40, 801, dtype=torch.float64), torch.tensor([-math.inf])])
    mean, stderr = profile.at(log_snr)
    true = variance / (1 + variance * log_snr.exp())
    torch.testing.assert_close(mean, true, rtol=1e-9, atol=0)
    torch.testing.assert_close(stderr, 0.1 * true, rtol=1e-9, atol=0)
    ratio, _ = profile.ratio(log_snr)
    torch.testing.assert_close(ratio, torch.ones_like(ratio), rtol=1e-9, atol=0)


def test_grid_points_are_kept_and_ends_go_on():
    grid = torch.tensor([-4.0, -1.0, 2.0], dtype=torch.float64)
    mean = torch.tensor([0.9, 0.3, 0.0], dtype=torch.float64)
    profile = VarianceProfile("posterior_variance", "collapsed", "lower", grid, mean, 0 * mean, 3, 1.0)
    torch.testing.assert_close(profile.at(grid)[0], mean)
    ends, _ = profile.at(torch.tensor([-math.inf, -30.0, 30.0, math.inf]))
    assert float(ends[0]) == pytest.approx(profile.scale * float(profile.ratio(grid)[0][0]))
    assert float(ends[0]) == pytest.approx(float(ends[1]), rel=1e-9)
    assert ends[2:].tolist() == [0.0, 0.0]
    between, _ = profile.at(torch.tensor([0.5]))
    assert 0 < float(between) < 0.3


@pytest.mark.parametrize("mean", [[0.0, 0.0], [5.0, 1.0]])
def test_values_that_no_posterior_variance_has_are_interpolated_too(mean):
    grid = torch.tensor([0.0, 1.0], dtype=torch.float64)
    curve = torch.tensor(mean, dtype=torch.float64)
    profile = VarianceProfile("posterior_variance", "odd", "upper", grid, curve, curve, 3, 1.0)
    torch.testing.assert_close(profile.at(grid)[0], curve)
    assert torch.isfinite(profile.at(torch.linspace(-9, 9, 7))[0]).all()


def test_one_point_stands_for_the_whole_axis():
    profile = gaussian(0.5, torch.tensor([1.0], dtype=torch.float64))
    mean, _ = profile.at(torch.tensor([[-3.0], [7.0]]))
    torch.testing.assert_close(mean[:, 0], 0.5 / (1 + 0.5 * torch.tensor([-3.0, 7.0]).double().exp()))


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"mean": -torch.ones(65)}, "not be negative"),
        ({"stderr": torch.full((65,), math.inf)}, "stderr must be a list of finite"),
        ({"mean": torch.ones(64)}, "one length"),
        ({"log_snr": torch.zeros(65)}, "strictly"),
        ({"log_snr": torch.zeros(65, 1)}, "log_snr must be a list"),
        ({"quantity": "noise"}, "unknown quantity"),
        ({"bound": "above"}, "lower, upper, estimate"),
        ({"dim": 0}, "positive"),
        ({"second_moment": math.nan}, "positive"),
    ],
)
def test_unsound_profiles_are_refused(changes, told):
    with pytest.raises(UserError, match=told):
        VarianceProfile(**{**gaussian(1.0).__dict__, **changes})


@pytest.mark.parametrize("content", ["[" * 100_000, '{"a": ' + "9" * 5000 + "}"])
def test_json_that_python_refuses_is_named(tmp_path, content):
    (tmp_path / "profile.json").write_text(content)
    with pytest.raises(UserError, match=r"profile\.json: is not JSON"):
        VarianceProfile.load(tmp_path / "profile.json")


@pytest.mark.parametrize("key", ["second_moment", "mean"])
def test_integers_too_large_for_a_float_are_named(key):
    content = gaussian(1.0).to_dict()
    content[key] = 10**400 if key == "second_moment" else [10**400] * 65
    with pytest.raises(UserError, match=f"'{key}' must be .* too large"):
        VarianceProfile.from_dict(content)


def test_a_pipe_is_no_profile(tmp_path):
    os.mkfifo(tmp_path / "profile.json")
    with pytest.raises(UserError, match="not a regular file"):
        VarianceProfile.load(tmp_path / "profile.json")
