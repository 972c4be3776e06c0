"""Rules against closed forms: CosMap and uniform for the unit Gaussian, least second moments."""

import json
import math

import pytest
import torch

from flowtempo.densities import LogitNormal, Mixture, Tabulated, Truncated, Uniform
from flowtempo.design import Design, design, nearest_logit_normal, variance_curve
from flowtempo.errors import UserError
from flowtempo.interpolants import Linear, Trigonometric, VariancePreserving
from flowtempo.timesteps import Proposal
from flowtempo.variance import Bracket, VarianceProfile, measure

GRID = torch.linspace(-14, 14, 65, dtype=torch.float64)
T = torch.linspace(0, 1, 4001, dtype=torch.float64)


def profile(variance=1.0):
    mean = variance / (1 + variance * GRID.exp())
    return VarianceProfile("posterior_variance", "closed form", "estimate", GRID, mean, 0 * mean, 4, variance)


def test_linear_paper_rule_on_the_unit_gaussian_is_cosmap():
    designed = design(profile(), Linear(), floor=0.0)
    torch.testing.assert_close(
        designed.density.pdf(T), 2 / (math.pi * (1 - 2 * T + 2 * T**2)), rtol=0, atol=1e-6
    )
    assert designed.moves_objective
    assert designed.target is designed.density


def test_trigonometric_paper_rule_on_the_unit_gaussian_is_uniform():
    designed = design(profile(), Trigonometric(), floor=0.0)
    torch.testing.assert_close(designed.density.pdf(T), torch.ones_like(T), rtol=0, atol=1e-6)


def test_paper_rule_minimises_the_largest_ratio():
    curve = variance_curve(profile(0.3), Linear())
    density = design(profile(0.3), Linear(), floor=0.0).density
    ratio = curve.mean / density.pdf(curve.t)
    assert float(ratio.max() / ratio.min()) == pytest.approx(1, abs=1e-9)


@pytest.mark.parametrize("rule", ["importance", "neyman"])
@pytest.mark.parametrize("target", [Uniform(), LogitNormal(0.5, 1.2)])
def test_kept_objective_rules_minimise_the_weighted_second_moment(rule, target):
    """E[(p/q)^2 V] over q is least for q proportional to p sqrt(V), where it is (integral of p sqrt(V))^2."""
    designed = design(profile(0.3), Linear(), rule=rule, target=target, floor=0.0)
    assert not designed.moves_objective
    assert designed.target == target

    curve = variance_curve(profile(0.3), Linear())
    p, q = target.pdf(curve.t), designed.density.pdf(curve.t)
    second = torch.where(p > 0, p**2 / q * curve.mean, 0.0)
    least = torch.trapezoid(p * curve.mean.sqrt(), curve.t) ** 2
    assert float(torch.trapezoid(second, curve.t)) == pytest.approx(float(least), rel=1e-6)
    assert (
        Proposal(target, design(profile(0.3), Linear(), rule=rule, target=target).density).check().error
        < 1e-3
    )


def test_floor_is_a_share_of_the_uniform():
    bare, floored = (design(profile(0.1), Linear(), floor=floor).density for floor in (0.0, 0.2))
    torch.testing.assert_close(floored.pdf(T), 0.8 * bare.pdf(T) + 0.2)
    assert float(design(profile(0.1), Linear(), floor=1.0).density.pdf(T).sub(1).abs().max()) < 1e-12
    bounds = {"low": 0.2, "high": 0.6}
    bare, floored = (design(profile(0.1), Linear(), floor=floor, **bounds).density for floor in (0.0, 0.2))
    inside = T[(T >= 0.2) & (T <= 0.6)]
    torch.testing.assert_close(floored.pdf(inside), 0.8 * bare.pdf(inside) + 0.2 / 0.4)


def test_variance_preserving_needs_an_end_below_one():
    with pytest.raises(UserError, match=r"infinite at t = 1: .*high"):
        design(profile(), VariancePreserving())
    designed = design(profile(), VariancePreserving(), floor=0.0, high=0.999)
    assert designed.density.high == 0.999
    # V of the unit Gaussian is W^2, which grows like 1 / (1 - t) towards the data.
    t = torch.linspace(0, 0.999, 200_001, dtype=torch.float64)
    squared = VariancePreserving().wronskian(t) ** 2
    late = torch.trapezoid(squared[t >= 0.99], t[t >= 0.99]) / torch.trapezoid(squared, t)
    assert designed.density.mass(0.99, 0.999) == pytest.approx(float(late), rel=0.001)


def test_the_table_follows_a_pole():
    """V = W^2 up to 1 - 1e-5, where it is 10,000 times its value at t = 0.9."""
    path, high = VariancePreserving(), 1 - 1e-5
    density = design(profile(), path, floor=0.0, high=high).density
    t = 1 - torch.linspace(0, math.log(1.0001e-5), 50001, dtype=torch.float64).exp()
    true = path.wronskian(t) ** 2
    true = true / torch.trapezoid(true, t)
    torch.testing.assert_close(density.pdf(t), true, rtol=1e-3, atol=0)


@pytest.mark.parametrize("rule", ["importance", "neyman"])
def test_bounds_cut_the_target_too(rule):
    """A kept objective cannot average over times that are never drawn."""
    designed = design(profile(), Linear(), rule=rule, low=0.1, high=0.9)
    assert designed.target == Truncated(Uniform(), 0.1, 0.9)
    assert Proposal(designed.target, designed.density).check().error < 1e-3


def test_measured_gaussian_is_cosmap_within_its_error_bars():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1500, 4, generator=generator, dtype=torch.float64)
    bracket = measure(x, noises=4, queries=500)
    # Up to the scale of V, which is 1 only on average over data sets.
    for edge in (bracket.lower, bracket.upper):
        curve = variance_curve(
            edge, Linear(), "velocity", torch.linspace(0.05, 0.95, 19, dtype=torch.float64)
        )
        true = 1 / (1 - 2 * curve.t + 2 * curve.t**2)
        sign = 1 if edge.bound == "lower" else -1
        # The lower edge may lie below and the upper one above; neither may cross by more than its error.
        assert float((sign * (curve.mean - true) / curve.stderr).max()) < 4
    designed = design(bracket, Linear(), floor=0.0)
    cosmap = 2 / (math.pi * (1 - 2 * T + 2 * T**2))
    assert float((designed.density.pdf(T) / cosmap - 1).abs().max()) < 0.15


def test_bracket_edges_are_chosen_by_name():
    narrow, wide = profile(0.2), profile(1.0)
    bracket = Bracket(narrow, wide)
    assert design(bracket, Linear(), edge="lower").profile_hash == narrow.digest
    assert design(bracket, Linear()).profile_hash == wide.digest
    assert design(wide, Linear()).edge is None


@pytest.mark.parametrize(("mean", "std"), [(-0.75, 1.0), (0.0, 0.6), (1.2, 1.2), (-3.85, 0.87)])
def test_nearest_logit_normal_of_a_logit_normal_is_itself(mean, std):
    fit = nearest_logit_normal(LogitNormal(mean, std))
    assert fit.mean == pytest.approx(mean, abs=1e-4)
    assert fit.std == pytest.approx(std, abs=1e-4)
    assert fit.distance < 1e-6


@pytest.mark.parametrize(
    "density",
    [design(profile(0.3), Linear()).density, Mixture(LogitNormal(5, 0.05), 0.45)],
    ids=["designed", "spike"],
)
def test_no_logit_normal_nearby_is_nearer(density):
    """The second is far from any, and its quantiles, where the search starts, far from the nearest."""
    fit = nearest_logit_normal(density)
    t = torch.linspace(0, 1, 20001, dtype=torch.float64)

    def distance(mean, std):
        return float(torch.trapezoid((LogitNormal(mean, std).cdf(t) - density.cdf(t)).abs(), t))

    assert fit.distance == pytest.approx(distance(fit.mean, fit.std), rel=2e-4)
    for shift in (-0.01, 0.01):
        assert distance(fit.mean + shift, fit.std) > fit.distance
        assert distance(fit.mean, fit.std + shift) > fit.distance


def test_saved_design_comes_back(tmp_path):
    path = tmp_path / "density.json"
    designed = design(profile(0.3), Linear(), rule="neyman", target=LogitNormal(0.0, 1.0))
    designed.save(path)
    loaded = Design.load(path)
    torch.testing.assert_close(loaded.density.values, designed.density.values, rtol=1e-14, atol=0)
    assert loaded.fit == designed.fit
    assert (loaded.rule, loaded.floor, loaded.edge, loaded.target) == (
        "neyman",
        0.05,
        None,
        LogitNormal(0.0, 1.0),
    )
    assert Tabulated.load(path) == loaded.density


def test_damaged_designs_are_named(tmp_path):
    path = tmp_path / "density.json"
    design(profile(), Linear()).save(path)
    text = path.read_text()
    for broken, told in (
        (text[: len(text) // 2], "cut short"),
        (text.replace('"rule": "paper"', '"rule": "papper"'), "rule"),
        (json.dumps({"schema": 2, "kind": "bracket"}), "a density is needed"),
        (text.replace('"floor"', '"flor"'), "floor"),
        (text.replace('"rule"', '"extra": 1, "rule"'), "unknown key 'extra'"),
        (text.replace('"velocity"', '"speed"'), "prediction"),
    ):
        path.write_text(broken)
        with pytest.raises(UserError, match=told) as raised:
            Design.load(path)
        assert str(path) in str(raised.value)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"rule": "papers"}, "paper, importance, neyman"),
        ({"edge": "middle"}, "upper, lower"),
        ({"floor": 1.5}, "floor"),
        ({"low": 0.6, "high": 0.5}, "low"),
        ({"target": Uniform()}, "no effect"),
        ({"edge": "lower"}, "no effect on a single profile"),
    ],
)
def test_wrong_options_are_named(options, told):
    with pytest.raises(UserError, match=told):
        design(profile(), Linear(), **options)


def test_a_profile_of_zeros_is_refused():
    nothing = VarianceProfile("posterior_variance", "none", "lower", GRID, 0 * GRID, 0 * GRID, 4, 1.0)
    with pytest.raises(UserError, match="is zero"):
        design(nothing, Linear())
