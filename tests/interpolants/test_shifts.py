import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from flowtempo.errors import UserError
from flowtempo.interpolants import (
    Linear,
    Shifted,
    VariancePreserving,
    flux_shift,
    interpolant,
    lightningdit_shift,
    sd3_shift,
    shift,
    token_count,
)

shifts = st.floats(0.01, 100)
times = st.floats(0, 1)


def tensor(*values):
    return torch.tensor(values, dtype=torch.float64)


def tau_shift(tau, s):
    """The usual form, in the noise level."""
    return s * tau / (1 + (s - 1) * tau)


def test_last_three_levels_of_a_thousand():
    # diffusers' FlowMatchEulerDiscreteScheduler(1000, shift=3).sigmas; shifting twice nearly triples them.
    levels = torch.arange(1000, 0, -1, dtype=torch.float64) / 1000
    once = 1 - shift(1 - levels, 3)
    torch.testing.assert_close(once[-3:], tensor(0.008946, 0.005976, 0.002994), rtol=0, atol=5e-7)
    torch.testing.assert_close(
        1 - shift(1 - once, 3)[-3:], tensor(0.0263672, 0.0177165, 0.0089286), rtol=0, atol=5e-8
    )


def test_composition_is_multiplication():
    t = shift(shift(tensor(0.7), 3), 2)
    torch.testing.assert_close(1 - t, tensor(0.72), rtol=1e-15, atol=0)
    torch.testing.assert_close(shift(tensor(0.7), 6), t, rtol=1e-15, atol=0)


@given(times, shifts, shifts)
def test_shifts_form_a_group(t, a, b):
    t = tensor(t)
    torch.testing.assert_close(shift(shift(t, b), a), shift(t, a * b), rtol=1e-13, atol=1e-15)
    torch.testing.assert_close(shift(shift(t, a), 1 / a), t, rtol=1e-13, atol=1e-15)
    torch.testing.assert_close(1 - shift(t, a), tau_shift(1 - t, a), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("s", [1e-30, 0.3, 1.0, 3.0, 1e30])
def test_ends_stay_and_one_changes_nothing(dtype, s):
    t = torch.tensor([0.0, 0.25, 0.5, 1.0], dtype=dtype)
    moved = shift(t, s)
    assert moved[0] == 0
    assert moved[-1] == 1
    assert moved.dtype == dtype
    assert moved.isfinite().all()
    assert torch.equal(shift(t, 1), t)
    assert shift(t.half(), s).dtype == torch.float32


def test_each_sample_has_its_own_shift():
    t = tensor(0.2, 0.5, 0.9)
    each = shift(t, tensor(1, 3, 0.5))
    for index, s in enumerate((1, 3, 0.5)):
        assert each[index] == shift(t[index], s)
    assert torch.equal(shift(t, torch.tensor(3)), shift(t, 3.0))
    for wrong in (tensor(1, 2), torch.ones(3, 1), torch.ones(1)):
        with pytest.raises(ValueError, match="shift"):
            shift(t, wrong)


@pytest.mark.parametrize("s", [0, -1, math.inf, math.nan])
def test_a_shift_is_a_positive_number(s):
    for wrong in (s, tensor(1, 2, s)):
        with pytest.raises(UserError, match=f"above 0, not {float(s)}|above 0, not {s}"):
            shift(tensor(0.1, 0.2, 0.3), wrong)
    with pytest.raises(UserError, match="above 0"):
        Shifted(Linear(), s)


def test_shifted_path_is_the_base_at_shifted_times():
    t = torch.linspace(0, 1, 101, dtype=torch.float64)
    for base in (Linear(), VariancePreserving()):
        path = Shifted(base, 3)
        torch.testing.assert_close(path.alpha(t), base.alpha(shift(t, 3)), rtol=1e-14, atol=0)
        torch.testing.assert_close(path.sigma(t), base.sigma(shift(t, 3)), rtol=1e-12, atol=1e-15)
    inner = t[1:-1]
    moved = Shifted(Linear(), 3).log_snr(inner) - Linear().log_snr(inner)
    torch.testing.assert_close(moved, torch.full_like(inner, -2 * math.log(3)), rtol=1e-13, atol=0)


def test_a_path_is_shifted_once():
    with pytest.raises(UserError, match=r"shifted\(linear, 3\) is shifted already.*shifted\(linear, 6\)"):
        Shifted(Shifted(Linear(), 3), 2)
    with pytest.raises(UserError, match="shifted already"):
        interpolant("shifted(shifted(linear, 3), 2)")


FLUX = [
    ((512, 512), 0.63, 1.8776),
    ((1024, 1024), 1.15, 3.1582),
    ((512, 1024), 0.8033, 2.2330),
    ((1024, 512), 0.8033, 2.2330),
    ((768, 1344), 1.1392, 3.1242),
]


@pytest.mark.parametrize(("size", "mu", "s"), FLUX)
def test_flux_law(size, mu, s):
    got = flux_shift(token_count(*size))
    assert float(got.log()) == pytest.approx(mu, abs=5e-5)
    assert float(got) == pytest.approx(s, abs=5e-5)


def test_laws_are_per_sample():
    height, width = (torch.tensor([size[k] for size, _, _ in FLUX]) for k in (0, 1))
    tokens = token_count(height, width)
    assert tokens.tolist() == [1024, 4096, 2048, 2048, 4032]
    torch.testing.assert_close(flux_shift(tokens), tensor(*(s for *_, s in FLUX)), rtol=0, atol=5e-5)
    levels = 1 - shift(torch.full((5,), 0.5), flux_shift(tokens))
    torch.testing.assert_close(levels.double(), tensor(*(s / (1 + s) for *_, s in FLUX)), rtol=0, atol=1e-5)
    base = token_count(512, 512)
    assert sd3_shift(token_count(1024, 1024), float(base)) == 2
    torch.testing.assert_close(
        sd3_shift(tokens, 1024), tensor(1, 2, math.sqrt(2), math.sqrt(2), math.sqrt(4032 / 1024))
    )


def test_flux_times_of_its_own_code():
    # black-forest-labs/flux 1f71c43, time_shift(1.15, 1, .) of linspace(1, 0, 9), in float64.
    noise = torch.linspace(1, 0, 9, dtype=torch.float64)
    expected = [
        1.0,
        0.9567237271222464,
        0.9045307667386396,
        0.8403488020923521,
        0.7595109169491111,
        0.6545668033876179,
        0.5128441015091338,
        0.3109010566906254,
        0.0,
    ]
    got = 1 - shift(1 - noise, flux_shift(4096))
    torch.testing.assert_close(got, tensor(*expected), rtol=1e-14, atol=1e-15)


def test_token_count_wants_whole_patches():
    assert int(token_count(32, 64, downsample=1, patch=4)) == 128
    for size, key in (((500, 512), "height = 500"), ((512, 0), "width = 0")):
        with pytest.raises(UserError, match=key):
            token_count(*size)
    with pytest.raises(UserError, match="height = 520"):
        token_count(torch.tensor([512, 520]), torch.tensor([512, 512]))
    with pytest.raises(ValueError, match="shapes"):
        token_count(torch.tensor([512, 512]), 512)


def test_lightningdit_moves_data_time():
    t = torch.linspace(0, 1, 11, dtype=torch.float64)
    there = 0.3 * t / (1 + (0.3 - 1) * t)
    torch.testing.assert_close(shift(t, lightningdit_shift(0.3)), there, rtol=1e-14, atol=0)
    assert lightningdit_shift(0) == 1
    with pytest.raises(UserError, match="timestep_shift = -1"):
        lightningdit_shift(-1)
