"""DDPM's schedules against the numbers that peers' code gives."""

import pytest
import torch

from flowtempo.errors import UserError
from flowtempo.interpolants import (
    DdpmCosine,
    DdpmLinear,
    DdpmScaledLinear,
    Linear,
    Shifted,
    ZeroTerminalSnr,
    interpolant,
)

STEPS = [0, 1, 10, 250, 500, 750, 998, 999]
# alpha_bar at STEPS of T = 1000. linear, cosine: openai/guided-diffusion 22e0df8, get_named_beta_schedule;
# scaled linear: numpy.linspace(0.00085 ** 0.5, 0.012 ** 0.5, 1000) ** 2 as in Stable Diffusion and U-ViT.
# Zero terminal: diffusers 0.42.1, rescale_zero_terminal_snr of the same betas. All float64.
GOLDEN = {
    "ddpm_linear": [
        0.9999,
        0.9997800920720721,
        0.997806572507846,
        0.5214230306185275,
        0.07779665836502389,
        0.003300158361569426,
        4.118193638138445e-05,
        4.035829765375676e-05,
    ],
    "ddpm_scaled_linear": [
        0.99915,
        0.9982960278384514,
        0.9904313091142859,
        0.6737926252333215,
        0.2763326838229746,
        0.05616984800293729,
        0.004716698899875748,
        0.004660098513077238,
    ],
    "ddpm_cosine": [
        0.999958715775178,
        0.9999125759273678,
        0.9992789037733427,
        0.8458879864968832,
        0.49228517244880304,
        0.14317864642609812,
        2.4287669070348544e-06,
        2.4287669070348567e-09,
    ],
    "zero_terminal_snr(ddpm_linear)": [
        0.9999000000000002,
        0.9997793254331531,
        0.9977931947008821,
        0.5188605367916812,
        0.07524621570432673,
        0.002644105922212106,
        4.213262465088073e-09,
        0.0,
    ],
    "zero_terminal_snr(ddpm_scaled_linear)": [
        0.99915,
        0.9982334461401823,
        0.9897937330126813,
        0.6524570153414769,
        0.24101878275731575,
        0.03279911812874219,
        1.967888056621292e-07,
        0.0,
    ],
    "zero_terminal_snr(ddpm_cosine)": [
        0.9999587157751777,
        0.9999125736533471,
        0.9992788702738471,
        0.8458807104529258,
        0.492264538531666,
        0.14315546294128006,
        2.277811478992018e-06,
        0.0,
    ],
}
ALL = [interpolant(text) for text in GOLDEN]


@pytest.mark.parametrize("text", GOLDEN)
def test_alpha_bar_of_peers(text):
    path, expected = interpolant(text), torch.tensor(GOLDEN[text], dtype=torch.float64)
    torch.testing.assert_close(path.alpha_bars()[STEPS], expected, rtol=3e-12, atol=0)
    at_nodes = path.alpha(path.node_times()[STEPS])
    torch.testing.assert_close(at_nodes**2, expected, rtol=3e-12, atol=0)


def test_other_numbers_of_steps():
    # guided-diffusion, T = 100: steps 0, 50 and 99.
    for path, expected in (
        (DdpmLinear(100), [0.999, 0.06666562681829521, 2.039008975564078e-05]),
        (DdpmCosine(100), [0.9993687184016583, 0.4782646329454781, 2.4285722793500615e-07]),
    ):
        wanted = torch.tensor(expected, dtype=torch.float64)
        torch.testing.assert_close(path.alpha_bars()[[0, 50, 99]], wanted, rtol=1e-12, atol=0)


@pytest.mark.parametrize("path", ALL, ids=str)
def test_steps_stand_at_their_times(path):
    t = path.node_times()
    assert t.shape == (1000,)
    assert t[0] == 0.999
    assert t[-1] == 0
    assert torch.equal(path.nearest_node(t), torch.arange(1000))
    assert torch.equal(path.nearest_node(t.float()), torch.arange(1000))
    near = torch.tensor([1.0, 0.99949, 0.9986, 0.9984, 0.0006, 0.0004, 0.0], dtype=torch.float64)
    assert path.nearest_node(near).tolist() == [0, 0, 0, 1, 998, 999, 999]
    bars, betas = path.alpha_bars(), path.betas()
    torch.testing.assert_close(path.sigma(t) ** 2, 1 - bars, rtol=1e-10, atol=0)
    torch.testing.assert_close(torch.cumprod(1 - betas, 0), bars, rtol=1e-11, atol=0)
    back = path.time(path.log_snr(t))
    torch.testing.assert_close(back, t, rtol=0, atol=1e-15)


def test_between_steps_alpha_is_linear():
    path = DdpmScaledLinear()
    t = path.node_times()
    middle = (t[:-1] + t[1:]) / 2
    alpha = path.alpha_bars().sqrt()
    torch.testing.assert_close(path.alpha(middle), (alpha[:-1] + alpha[1:]) / 2, rtol=1e-14, atol=0)
    last = torch.tensor(0.9995, dtype=torch.float64)
    torch.testing.assert_close(path.alpha(last), (1 + alpha[0]) / 2, rtol=1e-14, atol=0)


def test_betas_are_the_stated_ones():
    betas = DdpmLinear().betas()
    assert betas.dtype == torch.float64
    assert betas[0] == pytest.approx(1e-4, rel=1e-15)
    assert betas[-1] == pytest.approx(0.02, rel=1e-15)
    assert DdpmCosine().betas()[-1] == 0.999
    assert ZeroTerminalSnr(DdpmCosine()).betas()[-1] == 1
    betas[0] = 7
    assert DdpmLinear().betas()[0] < 1


def test_zero_terminal_snr_keeps_the_first_step_and_ends_in_noise():
    for base in (DdpmLinear(), DdpmScaledLinear(), DdpmCosine()):
        path = ZeroTerminalSnr(base)
        assert path.alpha_bars()[-1] == 0
        assert path.steps == 1000
        torch.testing.assert_close(path.alpha_bars()[0], base.alpha_bars()[0], rtol=1e-15, atol=0)
    with pytest.raises(UserError, match="not linear"):
        ZeroTerminalSnr(Linear())
    for wrong in ("shifted(ddpm_linear, 2)", "zero_terminal_snr(ddpm_linear)"):
        with pytest.raises(UserError, match="whole steps"):
            interpolant(f"zero_terminal_snr({wrong})")
    assert Shifted(ZeroTerminalSnr(DdpmLinear()), 2).alpha(torch.zeros(1)) == 0


@pytest.mark.parametrize(
    "text",
    [
        "ddpm_linear(20)",
        "ddpm_scaled_linear(12)",
        "ddpm_cosine(1)",
        "ddpm_linear(1000.5)",
        "ddpm_linear(-5)",
        "ddpm_linear(1e9)",
        "ddpm_cosine(1e999)",
    ],
)
def test_steps_are_checked(text):
    with pytest.raises(UserError, match="steps = "):
        interpolant(text)
