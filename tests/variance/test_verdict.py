"""What is said about a bracket, against measurements with ten times the points and against known edges."""

import math
from dataclasses import replace

import pytest
import torch

from flowtempo.interpolants import Linear, Trigonometric, VariancePreserving
from flowtempo.variance import Bracket, VarianceProfile, in_sample
from flowtempo.variance.verdict import collapse, collapse_with, verdict

GRID = torch.linspace(-8, 8, 33, dtype=torch.float64)
GAUSSIAN = 1 / (1 + GRID.exp())


def profile(mean, stderr=0.0, dim=64, **changes):
    content = {
        "quantity": "posterior_variance",
        "method": "made up",
        "bound": "upper",
        "log_snr": GRID,
        "mean": mean,
        "stderr": torch.full_like(mean, stderr),
        "dim": dim,
        "second_moment": 1.0,
    }
    return VarianceProfile(**(content | changes))


@pytest.mark.parametrize(("dim", "count"), [(4, 100), (64, 200), (256, 100)])
def test_the_collapse_moves_with_ten_times_the_points_as_predicted(dim, count):
    """Within 0.15 of log-SNR in both directions, on Gaussian data."""
    grid = math.log(math.expm1(2 * math.log(count) / dim)) + torch.linspace(-1.5, 2, 15, dtype=torch.float64)
    exact = profile(1 / (1 + grid.exp()), log_snr=grid, dim=dim)
    generator = torch.Generator().manual_seed(dim)
    brackets = [
        Bracket(in_sample(torch.randn(m, dim, generator=generator), grid, 8, queries=100), exact)
        for m in (count, 10 * count)
    ]
    few, many = (collapse(each.lower) for each in brackets)
    assert many > few + 0.3
    assert collapse_with(brackets[0], 10) == pytest.approx(many, abs=0.15)
    assert collapse_with(brackets[1], 0.1) == pytest.approx(few, abs=0.15)


def test_the_collapse_is_where_the_information_is_the_logarithm_of_the_points():
    """The law itself: I = d/2 log(1 + SNR) of a Gaussian grows by log 10."""
    lower = profile(GAUSSIAN, bound="lower", ess=2 * (-GRID - 2).exp().clamp(min=0.5))
    bracket = Bracket(lower, profile(GAUSSIAN))
    assert collapse(lower) == pytest.approx(-2)
    moved = collapse_with(bracket, 10)
    information = [32 * math.log1p(math.exp(x)) for x in (-2, moved)]
    assert information[1] - information[0] == pytest.approx(math.log(10), abs=1e-3)


def test_no_collapse_is_none():
    assert collapse(profile(GAUSSIAN)) is None
    assert collapse(profile(GAUSSIAN, ess=torch.full_like(GRID, 7.0))) is None
    assert collapse(profile(GAUSSIAN, ess=torch.ones_like(GRID))) == -8
    assert collapse_with(Bracket(profile(GAUSSIAN), profile(GAUSSIAN)), 10) is None


@pytest.fixture
def bracket():
    """Collapsed from log-SNR -2 on; the edges agree up to 0 and are 4 apart from 2 on."""
    ess = 2 * (-GRID - 2).exp().clamp(min=0.5)
    apart = torch.where(GRID < 0.01, 1.0, torch.where(GRID > 1.99, 4.0, 1.5))
    counts = {"points": 5000, "queries": 10}
    lower = profile(GAUSSIAN / apart, bound="lower", ess=ess, counts=counts, dim=4096)
    return Bracket(lower, profile(GAUSSIAN, dim=4096))


def test_the_collapse_is_told_in_t_of_the_path(bracket):
    lines = verdict(bracket, Linear())
    # t = sigmoid(-1).
    assert lines[0] == (
        "With 5,000 points in 4,096 dimensions the posterior estimate says nothing above t = 0.27"
        " (log-SNR −2) on the linear path: use the upper edge, or `flowtempo probe` a model."
    )
    assert lines[1] == "Ten times the points would move that to about t = 0.27."
    # 2/pi atan(exp(-1)).
    assert "t = 0.22 (log-SNR −2) on the trigonometric path" in verdict(bracket, Trigonometric())[0]


def test_where_the_edges_agree_and_where_they_are_apart(bracket):
    """The lower edge's ratio falls from 1 at log-SNR 0 to 2/3 at 0.5 (0.91 at t = 0.517), and from 2/3 at 1.5
    to 1/4 at 2 (a half at t = 0.701)."""
    lines = verdict(bracket, Linear())
    assert lines[2] == "The edges agree within 10% for t from 0 to 0.52 on the linear path."
    assert lines[3].startswith("They are more than a factor of 2 apart for t from 0.7 to 1: there")


def test_edges_that_never_agree_and_edges_that_always_do():
    lower = profile(GAUSSIAN / 3, bound="lower")
    lines = verdict(Bracket(lower, profile(GAUSSIAN)), Linear())
    assert lines == [
        "The edges agree within 10% nowhere on the linear path.",
        "They are more than a factor of 2 apart for t from 0 to 1: there this data does not say how large the"
        " variance is.",
    ]
    assert verdict(Bracket(profile(GAUSSIAN, bound="lower"), profile(GAUSSIAN)), Linear()) == [
        "The edges agree within 10% for t from 0 to 1 on the linear path."
    ]


def test_a_lower_edge_of_zero_is_open(bracket):
    nothing = replace(bracket.lower, mean=torch.where(GRID > 4, 0.0, GAUSSIAN))
    lines = verdict(Bracket(nothing, profile(GAUSSIAN)), Linear())
    assert any(line.startswith("They are more than a factor of 2 apart for t from 0.8") for line in lines)


def test_an_estimate_that_holds_everywhere_says_on_how_many_points():
    lower = profile(GAUSSIAN, bound="lower", ess=torch.linspace(90, 7, 33), counts={"points": 100})
    assert verdict(Bracket(lower, profile(GAUSSIAN)), Linear())[0] == (
        "With 100 points in 64 dimensions the posterior estimate rests on at least 7 effective points"
        " everywhere."
    )


def test_a_collapse_before_the_path_begins_leaves_nothing(bracket):
    """The variance-preserving path starts at log-SNR -10."""
    early = replace(bracket.lower, log_snr=GRID - 20)
    assert (
        "says nothing at any t on the variance-preserving path"
        in verdict(Bracket(early, replace(bracket.upper, log_snr=GRID - 20)), VariancePreserving())[0]
    )


def test_an_inverted_bracket_is_told(bracket):
    wrong = Bracket(profile(1.2 * GAUSSIAN, 1e-4, bound="lower"), profile(GAUSSIAN, 1e-4))
    line = verdict(wrong, Linear())[-1]
    assert line.startswith(
        "The lower edge is above the upper one by more than 4 standard errors at log-SNR −8"
    )
    assert "near copies" in line
    assert not any("above the upper" in line for line in verdict(bracket, Linear()))


def test_what_the_class_adds(bracket):
    kind = {"quantity": "class_posterior_variance"}
    gain = 1 - 0.4 * torch.exp(-(GRID.square()) / 2)
    by_class = Bracket(profile(GAUSSIAN / 2, bound="lower", **kind), profile(GAUSSIAN * gain, **kind))
    assert "Knowing the class lowers the upper edge most at t = 0.5, by 40%." in verdict(
        replace(bracket, by_class=by_class), Linear()
    )
    same = replace(by_class, upper=profile(GAUSSIAN, **kind))
    assert "Knowing the class does not lower the upper edge." in verdict(
        replace(bracket, by_class=same), Linear()
    )
