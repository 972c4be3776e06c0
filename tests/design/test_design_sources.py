"""Designs from probes, single profiles and class-conditional brackets; what rests on a collapse; errors."""

import json

import pytest
import torch
from example_sources import GRID, LINEAR, from_blocks, measured, noisy_blocks, posterior, probe, slope

from flowtempo.densities import LogitNormal, Uniform
from flowtempo.design import Design, design, load_source
from flowtempo.errors import UserError
from flowtempo.interpolants import Linear, Trigonometric, VariancePreserving
from flowtempo.variance import Bracket

T = torch.linspace(0, 1, 1001, dtype=torch.float64)
FLAT = torch.ones_like(GRID)
# Curves that no other curve of the same probe has.
SECOND, SPREAD = slope(-2.0), slope(3.0)
MODEL = {"gradient_second_moment": SECOND, "gradient_variance": SPREAD, "gradient_norm": slope(9.0)}


def exponential(rate):
    """exp(rate t) as a density."""
    values = (rate * T).exp()
    return values / torch.trapezoid(values, T)


@pytest.mark.parametrize(
    ("rule", "rate", "quantity"),
    [
        ("paper", 3.0, "gradient_variance"),
        ("importance", -1.0, "gradient_second_moment"),
        ("neyman", 1.5, "gradient_variance"),
    ],
)
def test_each_rule_takes_its_own_gradient_curve(rule, rate, quantity):
    made = design(probe(MODEL), rule=rule, floor=0.0)
    # Linear interpolation in log-SNR of 65 points.
    torch.testing.assert_close(made.density.pdf(T), exponential(rate), rtol=0.02, atol=0)
    assert made.quantity == quantity
    assert (made.edge, made.group, made.collapsed) == (None, None, None)
    assert set(made.alternatives) == {"paper", "importance", "neyman"} - {rule}
    for other, fit in made.alternatives.items():
        assert fit == design(probe(MODEL), rule=other, floor=0.0).fit


@pytest.mark.parametrize("target", [Uniform(), LogitNormal(0.3, 0.9)])
def test_gradients_of_constant_size_leave_the_target_alone(target):
    """C2: for N(0, s^2) and one optimal linear parameter E g^2 = 4 s^2, though the loss varies with t."""
    made = design(probe({"loss": SECOND}), rule="importance", target=target, floor=0.0)
    torch.testing.assert_close(made.density.pdf(T), target.pdf(T), rtol=1e-4, atol=1e-4)


def test_a_group_of_parameters_has_its_own_density():
    source = probe(MODEL, {"head": {"gradient_variance": slope(-1.0)}})
    made = design(source, group="head", floor=0.0)
    torch.testing.assert_close(made.density.pdf(T), exponential(-1.0), rtol=0.02, atol=0)
    assert made.group == "head"
    with pytest.raises(UserError, match="unknown group 'body'; known: head"):
        design(source, group="body")
    with pytest.raises(UserError, match="known: none"):
        design(probe(MODEL), group="head")


def test_a_probe_brings_its_own_interpolant_and_prediction():
    model = {**LINEAR, "interpolant": "trigonometric", "prediction": "v"}
    source = probe(MODEL, model=model)
    made = design(source)
    assert (made.interpolant, made.prediction) == ("trigonometric", "v")
    assert design(source, Trigonometric(), prediction="v").density == made.density
    place = torch.tensor([0.3], dtype=torch.float64)
    expected = Linear().time(Trigonometric().log_snr(place)).mul(3.0).exp()
    unit = design(source, floor=0.0).density
    ratio = unit.pdf(place) / unit.pdf(torch.zeros(1))
    torch.testing.assert_close(ratio, expected, rtol=0.02, atol=0)
    with pytest.raises(UserError, match=r"measured for v on trigonometric, but v on linear"):
        design(source, Linear())
    with pytest.raises(UserError, match=r"measured for v on trigonometric, but noise on trigonometric"):
        design(source, prediction="noise")
    # Whatever the path would make of a target variance: gradients have no pole.
    vp = probe(MODEL, model={**LINEAR, "interpolant": "variance_preserving"})
    assert design(vp, VariancePreserving()).density.high == 1.0


def test_a_posterior_variance_is_for_linear_velocity_by_default():
    made = design(posterior())
    assert made.density == design(posterior(), Linear(), prediction="velocity").density
    assert made.alternatives["importance"] == made.alternatives["neyman"]


def test_single_profiles_serve_the_rules_that_they_fit():
    second = measured("gradient_second_moment", SECOND)
    made = design(second, rule="importance")
    assert made.density == design(probe(MODEL), rule="importance").density
    assert made.alternatives == {}
    assert made.profile_hash == second.digest
    assert set(design(measured("gradient_variance", SPREAD)).alternatives) == {"neyman"}
    for rule in ("paper", "neyman"):
        with pytest.raises(
            UserError, match=f"rule {rule} takes the gradient_variance, .*importance takes it"
        ):
            design(second, rule=rule)
    with pytest.raises(UserError, match=r"but this is a gradient_norm \(no rule takes it\)"):
        design(measured("gradient_norm", FLAT))
    for quantity in ("loss", "loss_second_moment"):
        with pytest.raises(UserError, match=f"from a {quantity}: the size of a loss is not the variance"):
            design(measured(quantity, FLAT))
    with pytest.raises(UserError, match="'interpolant' and 'prediction' are missing"):
        design(measured("gradient_variance", FLAT, model={}))


def test_the_class_conditional_bracket_is_chosen_by_name():
    def edges(*scales):
        return [posterior(scale / (1 + scale * GRID.exp()), "class_posterior_variance") for scale in scales]

    known = Bracket(*edges(0.1, 0.2))
    bracket = Bracket(posterior(), posterior(), by_class=known)
    assert design(bracket).quantity == "posterior_variance"
    made = design(bracket, by_class=True)
    assert (made.quantity, made.edge) == ("class_posterior_variance", "upper")
    assert made.profile_hash == known.upper.digest
    assert design(bracket, by_class=True, edge="lower").profile_hash == known.lower.digest
    with pytest.raises(UserError, match="no class-conditional part: measure with labels"):
        design(known, by_class=True)


@pytest.mark.parametrize(
    ("source", "options", "told"),
    [
        (posterior(), {"by_class": True}, "by_class = True has no effect on a single profile"),
        (probe(MODEL), {"by_class": True}, "no effect on a probe"),
        (probe(MODEL), {"edge": "upper"}, "edge = upper has no effect on a probe"),
        (posterior(), {"group": "head"}, "group = head has no effect on a single profile"),
        (Bracket(posterior(), posterior()), {"group": "head"}, "group = head has no effect on a bracket"),
        (posterior(), {"prediction": "speed"}, "unknown prediction 'speed'"),
    ],
)
def test_options_without_effect_are_named(source, options, told):
    with pytest.raises(UserError, match=told):
        design(source, **options)


def collapsing(ess, **more):
    return posterior(ess=ess, **more)


def test_the_mass_where_the_published_estimate_has_collapsed_is_told():
    # The logarithm of the effective size falls through that of 2 at log-SNR 0: t = 1/2 on the linear path.
    ess = (2 * (-GRID).exp()).clamp(1, 1000)
    bracket = Bracket(collapsing(ess), posterior())
    made = design(bracket, floor=0.0)
    assert made.collapsed.from_t == pytest.approx(0.5, abs=1e-9)
    assert made.collapsed.to_t == 1.0
    # CosMap is symmetric.
    assert made.collapsed.mass == pytest.approx(0.5, abs=1e-4)
    assert design(bracket, Trigonometric(), high=0.9).collapsed.to_t == 0.9
    assert design(bracket, edge="lower").collapsed.from_t == pytest.approx(0.5, abs=1e-9)
    assert design(bracket, low=0.6).collapsed.from_t == 0.6
    assert design(bracket, low=0.6).collapsed.mass == pytest.approx(1)
    assert design(bracket, high=0.4).collapsed.mass == 0
    assert design(collapsing(ess)).collapsed == design(bracket).collapsed
    assert design(Bracket(collapsing(ess.clamp(min=3)), posterior())).collapsed is None
    assert design(Bracket(posterior(), posterior())).collapsed is None


def test_everything_saved_comes_back(tmp_path):
    path = tmp_path / "density.json"
    ess = (2 * (-GRID).exp()).clamp(1, 1000)
    upper = from_blocks(noisy_blocks(1 / (1 + GRID.exp()), torch.Generator().manual_seed(0)))
    made = design(Bracket(collapsing(ess), upper), resamples=40)
    made.save(path)
    loaded = Design.load(path)
    for name in ("rule", "floor", "interpolant", "prediction", "quantity", "edge", "group", "fit"):
        assert getattr(loaded, name) == getattr(made, name)
    assert loaded.alternatives == made.alternatives
    assert loaded.collapsed == made.collapsed
    assert loaded.profile_hash == made.profile_hash
    for name in ("t", "low", "high"):
        assert torch.equal(getattr(loaded.band, name), getattr(made.band, name))
    assert loaded.band.level == 0.95
    content = json.loads(path.read_text())
    assert {
        "table",
        "fit",
        "rule",
        "target",
        "floor",
        "interpolant",
        "prediction",
        "edge",
        "profile_hash",
    } <= set(content)
    assert content["band"]["level"] == 0.95
    probed = design(probe(MODEL, {"head": {}}), rule="neyman", group="head", target=LogitNormal(0.0, 1.0))
    probed.save(path)
    loaded = Design.load(path)
    assert (loaded.group, loaded.target, loaded.band, loaded.collapsed) == (
        "head",
        LogitNormal(0.0, 1.0),
        None,
        None,
    )
    assert loaded.fit.mean_stderr is None


def test_damaged_records_name_the_key(tmp_path):
    path = tmp_path / "density.json"
    upper = from_blocks(noisy_blocks(1 / (1 + GRID.exp()), torch.Generator().manual_seed(0)))
    design(upper, resamples=40).save(path)
    sound = json.loads(path.read_text())

    def damaged(change):
        content = json.loads(json.dumps(sound))
        change(content)
        path.write_text(json.dumps(content))
        with pytest.raises(UserError) as raised:
            Design.load(path)
        assert str(path) in str(raised.value)
        return str(raised.value)

    assert "one length" in damaged(lambda content: content["band"]["low"].pop())
    assert "'level' is missing" in damaged(lambda content: content["band"].pop("level"))
    assert "'band' is missing" in damaged(lambda content: content.pop("band"))
    assert "'mean_stderr' is missing" in damaged(lambda content: content["fit"].pop("mean_stderr"))
    assert "'std_stderr' must be a number" in damaged(
        lambda content: content["fit"].update(std_stderr="small")
    )
    assert "unknown key 'best'" in damaged(lambda content: content["alternatives"].update(best={}))
    assert "'quantity' is 'loss variance'" in damaged(
        lambda content: content.update(quantity="loss variance")
    )
    assert "collapsed: " in damaged(lambda content: content.update(collapsed={"from_t": 1}))
    assert "'group'" in damaged(lambda content: content.update(group=3))


def test_any_measurement_is_read_by_its_kind(tmp_path):
    path = tmp_path / "source.json"
    for source in (Bracket(posterior(), posterior()), posterior(), probe(MODEL)):
        source.save(path)
        assert type(load_source(path)) is type(source)
        assert design(load_source(path)).density == design(source).density
    design(posterior()).save(path)
    with pytest.raises(
        UserError, match=r"is a density: a density is designed from a bracket, a profile, a probe"
    ):
        load_source(path)
    path.write_text("[1]")
    with pytest.raises(UserError, match="has no kind"):
        load_source(path)
