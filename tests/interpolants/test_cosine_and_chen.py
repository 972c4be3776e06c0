"""Schedules of simple diffusion and of Chen against the numbers of peers' code."""

import math

import pytest
import torch

from flowtempo.errors import UserError
from flowtempo.interpolants import (
    ChenCosine,
    ChenSigmoid,
    InterpolatedCosine,
    ShiftedCosine,
    Trigonometric,
    interpolant,
)

LIMIT = 2 * math.log(1e3)
TIMES = torch.tensor([0.1, 0.25, 0.5, 0.75, 0.9], dtype=torch.float64)


def tensor(*values):
    return torch.tensor(values, dtype=torch.float64)


def test_log_snr_of_k_diffusion():
    # crowsonkb/k-diffusion 7078b51, the schedules inside rand_cosine_interpolated in float64, sigma from 1e-3
    # to 1e3. Its u runs from the noise to the data, as t does here.
    shifted = ShiftedCosine(64, 256, -LIMIT, LIMIT).log_snr(TIMES)
    expected = tensor(
        -6.412274689961748,
        -4.51876750412218,
        -2.765088747317735,
        -1.005241643834438,
        0.9151377881368066,
    )
    torch.testing.assert_close(shifted, expected, rtol=1e-12, atol=1e-12)
    interpolated = InterpolatedCosine(32, 256, 512, -LIMIT, LIMIT).log_snr(TIMES)
    expected = tensor(
        -8.651820251955563,
        -6.216015877651715,
        -3.4482990954184514,
        -0.6571252115394182,
        1.8823748260939326,
    )
    torch.testing.assert_close(interpolated, expected, rtol=1e-12, atol=1e-12)


def test_bounds_are_reached_whatever_the_shift():
    ends = tensor(0, 1)
    for path in (ShiftedCosine(64, 256), ShiftedCosine(256, 64), InterpolatedCosine(32, 64, 128)):
        torch.testing.assert_close(path.log_snr(ends), tensor(-15, 15), rtol=1e-12, atol=0)
    # Moved bounds give the paper's form, the cosine's log-SNR plus the shift at every t.
    move = 2 * math.log(64 / 256)
    paper = ShiftedCosine(64, 64).log_snr(TIMES) + move
    torch.testing.assert_close(ShiftedCosine(64, 256, -15 + move, 15 + move).log_snr(TIMES), paper)


def test_interpolated_cosine_takes_each_size_at_its_end():
    path = InterpolatedCosine(32, 256, 512)
    low, high = ShiftedCosine(32, 512), ShiftedCosine(256, 512)
    near = tensor(0.001, 0.999)
    torch.testing.assert_close(path.log_snr(near)[0], low.log_snr(near)[0], rtol=0, atol=0.01)
    torch.testing.assert_close(path.log_snr(near)[1], high.log_snr(near)[1], rtol=0, atol=0.01)
    same = InterpolatedCosine(64, 64, 256)
    torch.testing.assert_close(same.log_snr(TIMES), ShiftedCosine(64, 256).log_snr(TIMES))
    wide = InterpolatedCosine(1, 4096, 64, -40, 40)
    t = torch.linspace(0, 1, 10_001, dtype=torch.float64)
    assert (wide.log_snr(t).diff() > 0).all()
    torch.testing.assert_close(wide.time(wide.log_snr(t)), t, rtol=0, atol=1e-14)


# google-research/pix2seq 5401b96, cosine_schedule and sigmoid_schedule at 0, 0.1, 0.5, 0.9 and 1, in float64.
GAMMAS = {
    "chen_cosine": [1.0, 0.9755282581475768, 0.5, 0.02447174185242323, 1e-09],
    "chen_cosine(0.2, 1, 2)": [1.0, 0.8192887743171777, 0.14589803375031538, 0.00030160579088305787, 1e-09],
    "chen_cosine(0, 0.5)": [1.0, 0.9876883405951378, 0.7071067811865474, 0.15643446504023076, 1e-09],
    "chen_sigmoid": [1.0, 0.9605072172736238, 0.5, 0.039492782726376345, 1e-09],
    "chen_sigmoid(0, 3, 0.3)": [1.0, 0.5378408806619516, 0.01329611334158015, 0.00015600757939105697, 1e-09],
    "chen_sigmoid(-3, 3, 0.5)": [1.0, 0.994281773967268, 0.5, 0.005718226032732034, 1e-09],
}


@pytest.mark.parametrize("text", GAMMAS)
def test_gamma_of_pix2seq(text):
    path, noise = interpolant(text), tensor(0, 0.1, 0.5, 0.9, 1)
    torch.testing.assert_close(path.gamma(1 - noise), tensor(*GAMMAS[text]), rtol=1e-11, atol=0)
    torch.testing.assert_close(path.alpha(1 - noise) ** 2, tensor(*GAMMAS[text]), rtol=1e-11, atol=0)
    scaled = interpolant(text[:-1] + ", scale=0.3)" if text.endswith(")") else text + "(scale=0.3)")
    torch.testing.assert_close(scaled.gamma(TIMES), path.gamma(TIMES), rtol=0, atol=0)
    torch.testing.assert_close(scaled.alpha(TIMES), 0.3 * path.alpha(TIMES), rtol=1e-15, atol=0)
    assert torch.equal(scaled.sigma(TIMES), path.sigma(TIMES))
    moved = scaled.log_snr(TIMES) - path.log_snr(TIMES)
    torch.testing.assert_close(moved, torch.full_like(moved, 2 * math.log(0.3)), rtol=1e-12, atol=0)


def test_whole_quarter_wave_is_the_trigonometric_path():
    t = torch.linspace(1e-4, 1, 1001, dtype=torch.float64)
    for name in ("alpha", "sigma", "d_alpha", "d_sigma", "wronskian"):
        got, expected = getattr(ChenCosine(), name)(t), getattr(Trigonometric(), name)(t)
        torch.testing.assert_close(got, expected, rtol=1e-13, atol=1e-15)


def test_gamma_is_cut_near_the_noise():
    path = ChenCosine(0, 1, 3)
    # (pi t / 2)^6 = 1e-9 at t = 0.0201.
    t = tensor(0, 0.01, 0.02, 0.0203)
    assert path.gamma(t)[:3].tolist() == [1e-9] * 3
    assert path.gamma(t)[3] > 1e-9
    assert (path.d_log_snr(t)[:3] == 0).all()
    assert (path.velocity(torch.ones(4, 2), torch.ones(4, 2), t)[:3] == 0).all()
    assert float(path.time(tensor(math.log(1e-9)))) == pytest.approx(0.02014, abs=1e-5)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("shifted_cosine(0, 64)", "noise_size = 0"),
        ("shifted_cosine(64, 64, 5, 5)", "low = 5"),
        ("shifted_cosine(64, 64, -1e999, 5)", "low = -inf"),
        ("interpolated_cosine(64, 32, 64)", "noise_size_low = 64.* is above noise_size_high = 32"),
        ("interpolated_cosine(32, 64, -1)", "image_size = -1"),
        ("chen_cosine(0.5, 0.5)", "start = 0.5"),
        ("chen_cosine(0, 1.1)", "end = 1.1"),
        ("chen_cosine(0, 1, 0)", "tau = 0"),
        ("chen_cosine(0, 1, 1, -2)", "scale = -2"),
        ("chen_sigmoid(3, -3)", "start = 3"),
        ("chen_sigmoid(-3, 3, 1, 0)", "scale = 0"),
        ("polynomial(0)", "n = 0"),
        ("variance_exploding(80, 0.002)", "sigma_min = 80"),
    ],
)
def test_constants_are_checked(text, told):
    with pytest.raises(UserError, match=told):
        interpolant(text)


def test_sharp_sigmoids_do_not_overflow():
    for path in (ChenSigmoid(-3, 3, 0.01), ChenSigmoid(-3, 3, 1e-3), ChenSigmoid(0, 800, 1.0)):
        log_snr = path.log_snr(TIMES)
        assert not log_snr.isnan().any()
        assert not path.time(torch.cat([log_snr, tensor(-math.inf, math.inf)])).isnan().any()
