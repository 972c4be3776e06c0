"""What every weighting must do, for every prediction under every interpolant."""

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from interpolant_examples import EXAMPLES

from flowtempo.errors import UserError
from flowtempo.interpolants import DdpmCosine, DdpmLinear, Linear, per_sample
from flowtempo.objectives import WEIGHTINGS, Objective, weighting
from flowtempo.predictions import PREDICTIONS, convert, error_factor, log_error_factor

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "peers.json").read_text())
FORMS = [
    *WEIGHTINGS,
    "min_snr(1)",
    "soft_min_snr(0.5)",
    "edm(1)",
    "p2(0.5, 0.5)",
    "debiased(10)",
    "speed(1, 30, 50)",
]
# Stated on the loss of another prediction than the data: what it is there, as a function of alpha, sigma, W.
FORMULAS = {
    "snr": ("data", lambda a, s, w: a**2 / s**2),
    "snr_plus_one": ("data", lambda a, s, w: a**2 / s**2 + 1),
    "truncated_snr": ("data", lambda a, s, w: (a**2 / s**2).clamp_min(1)),
    "min_snr": ("data", lambda a, s, w: (a**2 / s**2).clamp_max(5)),
    "soft_min_snr": ("data", lambda a, s, w: 5 * (a**2 / s**2) / (a**2 / s**2 + 5)),
    "edm": ("data", lambda a, s, w: ((s / a) ** 2 + 0.25) / (s / a * 0.5) ** 2),
    "p2": ("noise", lambda a, s, w: 1 / (1 + a**2 / s**2)),
    "debiased": ("noise", lambda a, s, w: 1 / (a**2 / s**2).clamp_max(1000).sqrt()),
    "sit_velocity": ("noise", lambda a, s, w: (w / a) ** 2),
    "sit_likelihood": ("noise", lambda a, s, w: w / (a * s)),
}
PATHS = [examples[0] for examples in EXAMPLES.values()]
TIMES = torch.tensor([1e-3, 0.02, 0.1, 0.37, 0.5, 0.81, 0.99, 0.999], dtype=torch.float64)


@pytest.mark.parametrize("path", PATHS, ids=str)
def test_the_logarithm_of_the_error_factor(path):
    for prediction in PREDICTIONS:
        factor = error_factor(prediction, path, TIMES)
        logarithm = log_error_factor(prediction, path, TIMES)
        torch.testing.assert_close(logarithm.exp(), factor, rtol=1e-9, atol=0)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("path", PATHS, ids=str)
def test_weighted_losses_of_all_predictions_are_one_loss(path, form):
    made = weighting(form)
    x1, x0, wrong = torch.randn(3, len(TIMES), 6, generator=torch.Generator().manual_seed(1)).double()
    x_t = path.mix(x1, x0, TIMES)
    on_data = made.on_data(path, TIMES) * (wrong - x1).square().mean(1)
    for prediction in PREDICTIONS:
        output = convert(wrong, x_t, TIMES, path, source="data", to=prediction)
        plain = Objective(path, prediction).loss(output, x1, x0, TIMES)
        loss = Objective(path, prediction, weighting=made).loss(output, x1, x0, TIMES)
        torch.testing.assert_close(loss.terms["mse"], plain.total)
        torch.testing.assert_close(loss.total, on_data, rtol=1e-6, atol=0)


@pytest.mark.parametrize("form", FORMULAS)
@pytest.mark.parametrize("path", PATHS, ids=str)
def test_weights_are_those_of_the_papers(path, form):
    prediction, formula = FORMULAS[form]
    expected = formula(path.alpha(TIMES), path.sigma(TIMES), path.wronskian(TIMES))
    torch.testing.assert_close(weighting(form).weight(prediction, path, TIMES), expected, rtol=1e-9, atol=0)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("path", PATHS, ids=str)
def test_finite_not_negative_and_the_same_twice(path, form):
    made = weighting(form)
    t = torch.tensor([torch.finfo(torch.float32).tiny, 1e-6, 0.5, 1 - 2**-24])
    for prediction in PREDICTIONS:
        inside = made.weight(prediction, path, t)
        ends = made.weight(prediction, path, torch.tensor([0.0, 1.0]))
        for weight, times in ((inside, t), (ends, t[[0, -1]])):
            assert weight.dtype == torch.float64
            # Where log-SNR stands still the velocity says nothing and no finite weight makes up for it.
            moving = path.d_log_snr(times) > 0
            assert (weight[moving] >= 0).all()
        assert inside[path.d_log_snr(t) > 0].isfinite().all()
        assert torch.equal(made.weight(prediction, path, t).nan_to_num(), inside.nan_to_num())


@pytest.mark.parametrize("form", FORMS)
def test_text_round_trip(form):
    assert weighting(str(weighting(form))) == weighting(form)


@pytest.mark.parametrize("form", FORMS)
def test_the_gradient_is_multiplied_by_the_weight(form):
    x1, x0 = torch.randn(2, 4, 3, generator=torch.Generator().manual_seed(2)).double()
    t = torch.tensor([0.1, 0.4, 0.6, 0.9], dtype=torch.float64)
    gradients = []
    for made in (None, weighting(form)):
        output = torch.zeros_like(x1, requires_grad=True)
        Objective(Linear(), weighting=made).loss(output, x1, x0, t).total.sum().backward()
        gradients.append(output.grad)
    weight = weighting(form).weight("velocity", Linear(), t)
    torch.testing.assert_close(gradients[1], per_sample(weight, x1) * gradients[0])


@given(gamma=st.floats(0.01, 1000), t=st.floats(0.001, 0.999))
def test_soft_min_lies_below_min_and_above_half_of_it(gamma, t):
    time = torch.tensor([t], dtype=torch.float64)
    hard = float(weighting(f"min_snr({gamma!r})").on_data(Linear(), time))
    soft = float(weighting(f"soft_min_snr({gamma!r})").on_data(Linear(), time))
    assert hard / 2 <= soft * (1 + 1e-12)
    assert soft <= hard * (1 + 1e-12)


@pytest.mark.parametrize(
    ("record", "form", "path", "prediction", "tolerance"),
    [
        # Their losses are float32.
        ("min-snr noise", "min_snr(5)", DdpmCosine(), "noise", 1e-6),
        ("min-snr data", "min_snr(5)", DdpmCosine(), "data", 1e-6),
        ("min-snr v", "min_snr(5)", DdpmCosine(), "v", 1e-6),
        ("speed", "speed", DdpmLinear(), "noise", 1e-12),
        ("speed-cosine", "speed", DdpmCosine(), "noise", 1e-12),
        ("p2", "p2", DdpmLinear(), "noise", 1e-12),
    ],
)
def test_weights_of_public_code_at_its_steps(record, form, path, prediction, tolerance):
    golden = GOLDEN[record]["weights"]
    weight = weighting(form).weight(prediction, path, path.node_times()[golden["index"]])
    exact = torch.tensor(golden["weight"], dtype=torch.float64)
    torch.testing.assert_close(weight, exact, rtol=tolerance, atol=0)


@pytest.mark.parametrize(("record", "form"), [("sd3-cosmap", "cosmap"), ("sigma-sqrt", "sigma_sqrt")])
def test_weights_of_diffusers_on_the_velocity_loss(record, form):
    golden = {
        key: torch.tensor(value, dtype=torch.float64) for key, value in GOLDEN[record]["weights"].items()
    }
    weight = weighting(form).weight("velocity", Linear(), golden["t"])
    torch.testing.assert_close(weight, golden["weight"], rtol=1e-7, atol=0)


def test_the_change_aware_weight_runs_from_a_bound_to_the_other_and_is_1_in_the_noise():
    path = DdpmLinear()
    weight = weighting("speed(0.6, 700, 1000)").weight("noise", path, path.node_times())
    assert float(weight[:700].min()) == pytest.approx(0.4, abs=0.01)
    assert float(weight[:700].max()) == pytest.approx(0.6, abs=1e-12)
    assert (weight[700:] == 1).all()
    between = torch.tensor([1 - 700.4 / 1000, 1 - 700.6 / 1000], dtype=torch.float64)
    assert (weighting("speed(0.6, 700, 1000)").weight("noise", path, between) == 1).tolist() == [False, True]


@pytest.mark.parametrize(
    ("form", "message"),
    [
        ("min_snr(0)", "min_snr: gamma = 0.0 must be"),
        ("soft_min_snr(-1)", "gamma = -1.0"),
        ("edm(0)", "sigma_data"),
        ("p2(0)", "p2: k = 0.0"),
        ("p2(1, 0)", "p2: gamma = 0.0"),
        ("debiased(0)", "cap"),
        ("speed(0.4)", "strength = 0.4 must be 0.5 to 1"),
        ("speed(0.6, 700, 1.5)", "steps = 1.5 must be a whole number"),
        ("speed(0.6, 2000)", "boundary = 2000 must be a whole number, 1 to 1000"),
        ("minsnr", "unknown weighting 'minsnr' .* use one of snr, "),
    ],
)
def test_bad_forms_are_told_in_one_line(form, message):
    with pytest.raises(UserError, match=message) as error:
        weighting(form)
    assert "\n" not in str(error.value)
