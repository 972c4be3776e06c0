"""The bracket against known MMSEs, its honesty about choosing, and its file."""

import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flowtempo.errors import UserError
from flowtempo.variance import Bracket, VarianceProfile, in_sample, leave_one_out, measure
from flowtempo.variance.bracket import _controlled
from flowtempo.variance.estimate import Jackknifed, average, least, pointwise
from flowtempo.variance.points import prepare

GRID = torch.tensor([-14.0, -8, -4, -2, -1, 0, 1, 2, 4, 8, 14], dtype=torch.float64)


def spectrum(kind, dim):
    if kind == "power law":
        return (1 + torch.arange(dim, dtype=torch.float64)) ** -1.5
    values = torch.ones(dim, dtype=torch.float64)
    if kind == "three strong":
        values[3:] = 1e-4
    return values


@pytest.mark.parametrize(
    ("dim", "count", "kind", "queries"),
    [
        (1, 50, "flat", None),
        (2, 300, "flat", None),
        (8, 8, "flat", None),
        (16, 600, "flat", 100),
        (16, 400, "power law", None),
        (64, 100, "flat", None),
        (64, 40, "flat", None),
        (128, 60, "power law", None),
        (32, 200, "three strong", 64),
    ],
)
def test_contains_the_gaussian_closed_form(dim, count, kind, queries):
    """Within 4 standard errors at every log-SNR, with fewer points than dimensions among the cases."""
    values = spectrum(kind, dim)
    true = (values / (1 + GRID.exp()[:, None] * values)).mean(1)
    generator = torch.Generator().manual_seed(dim + count)
    for seed in range(4):
        x = torch.randn(count, dim, generator=generator, dtype=torch.float64) * values.sqrt() - 1
        bracket = measure(x, log_snr=GRID, noises=8, queries=queries, seed=seed)
        lower, upper = bracket.lower, bracket.upper
        assert (lower.mean <= true + 4 * lower.stderr).all()
        assert (upper.mean >= true - 4 * upper.stderr).all()
        assert (lower.mean <= upper.mean + 4 * (lower.stderr + upper.stderr)).all()


@settings(max_examples=12, deadline=None, derandomize=True)
@given(
    dim=st.integers(1, 80),
    count=st.integers(32, 300),
    power=st.floats(0, 3),
    scale=st.floats(0.1, 10),
    seed=st.integers(0, 2**32),
)
def test_contains_any_gaussian_closed_form(dim, count, power, scale, seed):
    """Dimension, spectrum, number of points and units are free; many have fewer points than dimensions."""
    values = scale**2 * (1 + torch.arange(dim, dtype=torch.float64)) ** -power
    true = (values / (1 + GRID.exp()[:, None] * values)).mean(1)
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, dim, generator=generator, dtype=torch.float64) * values.sqrt()
    bracket = measure(x, log_snr=GRID, noises=4, seed=seed)
    lower, upper = bracket.lower, bracket.upper
    assert (lower.mean <= true + 4 * lower.stderr).all()
    assert (upper.mean >= true - 4 * upper.stderr).all()
    assert (lower.mean <= upper.mean + 4 * lower.stderr.hypot(upper.stderr)).all()


def mixture_mmse(log_snr, centre, std, dim):
    """MMSE per dimension of +-centre along one axis plus N(0, std^2 I): a scalar integral and a Gaussian.

    Given z, the posterior is a mixture with weights tanh-distributed along the axis: the MMSE along it is
    s^2 / (1 + r^2 s^2) + (centre / (1 + r^2 s^2))^2 (1 - E tanh^2).
    """
    nodes, weights = np.polynomial.hermite_e.hermegauss(301)
    square = np.exp(log_snr.numpy())[:, None]
    rest = std**2 / (1 + square * std**2)
    spread = np.sqrt(std**2 + 1 / square)
    tanh = np.tanh(centre * (centre + spread * nodes) / spread**2)
    missing = 1 - (tanh**2 * weights).sum(1) / math.sqrt(2 * math.pi)
    along = rest[:, 0] + (centre / (1 + square[:, 0] * std**2)) ** 2 * missing
    return torch.from_numpy((along + (dim - 1) * rest[:, 0]) / dim)


@pytest.mark.parametrize(("dim", "count"), [(2, 400), (12, 300), (40, 30)])
def test_contains_the_mixture_mmse(dim, count):
    """Not Gaussian: here leave-one-out is the better upper edge where the posterior tells the modes apart."""
    grid = torch.linspace(-8, 8, 17, dtype=torch.float64)
    true = mixture_mmse(grid, 2.0, 0.3, dim)
    generator = torch.Generator().manual_seed(0)
    chosen = []
    for seed in range(4):
        x = 0.3 * torch.randn(count, dim, generator=generator, dtype=torch.float64)
        x[:, 0] += 2 * (2 * torch.randint(0, 2, (count,), generator=generator) - 1)
        bracket = measure(x, log_snr=grid, noises=8, seed=seed, target_stderr=0)
        lower, upper = bracket.lower, bracket.upper
        assert (lower.mean <= true + 4 * lower.stderr).all()
        assert (upper.mean >= true - 4 * upper.stderr).all()
        posterior, linear = bracket.candidates[1:]
        chosen.append(float((linear.mean - posterior.mean).max()))
        least_of_both = torch.minimum(posterior.mean, linear.mean)
        assert ((upper.mean - least_of_both).abs() <= 3 * (upper.stderr + linear.stderr)).all()
    if dim < count:
        assert min(chosen) > 0.02


def folds(*curves):
    return tuple(
        Jackknifed(mean, torch.zeros(4, len(mean), dtype=torch.float64), torch.zeros_like(mean))
        for mean in curves
    )


def test_choosing_the_least_is_not_optimistic():
    """Five equal candidates with independent noise: the plain minimum is a full sigma too low."""
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(5, 2, 20000, generator=generator, dtype=torch.float64)
    points = prepare(torch.randn(20, 1, generator=generator), seed=0)
    edge = average(points, least([folds(first, second) for first, second in noise])).mean
    assert abs(float(edge.mean())) < 4 / math.sqrt(2 * 20000)
    assert float(noise.mean(1).min(0).values.mean()) < -0.7


def test_choice_carries_its_own_error():
    high, low = torch.tensor([5.0, 1.0]).double(), torch.tensor([1.0, 5.0]).double()
    first, second = folds(high, high), folds(low, low)
    chosen = least([first, second])
    for fold in chosen:
        assert fold.mean.tolist() == [1.0, 1.0]


def test_the_control_does_not_shift_the_mean():
    """A slope fitted to the queries that it corrects would: 20,000 curves with 8 queries a fold show it."""
    generator = torch.Generator().manual_seed(0)
    points = prepare(torch.randn(64, 1, generator=generator), seed=0)
    query = torch.cat([points.queries(block, points.blocks) for block in range(points.blocks)])
    control = torch.randn(64, 20000, generator=generator, dtype=torch.float64).exp()
    value = control.sqrt()
    controlled = average(
        points,
        _controlled(
            points, pointwise(points, value[query], query), pointwise(points, control, torch.arange(64))
        ),
    )
    shift = controlled.mean - value.mean(0)
    assert abs(float(shift.mean())) < 4 * float(shift.std()) / math.sqrt(20000)
    assert float(shift.std()) < 0.9 * float((value[query].mean(0) - value.mean(0)).std())


def test_the_control_removes_what_the_queries_do_not_show():
    """With 64 queries of 4,000 points a broad posterior is known as well as all points know the variance."""
    generator = torch.Generator().manual_seed(0)
    scale = 1 + 0.5 * torch.randn(4000, 1, generator=generator)
    x = torch.randn(4000, 6, generator=generator) * scale
    grid = torch.tensor([-14.0], dtype=torch.float64)
    bracket = measure(x, log_snr=grid, queries=64)
    plain = leave_one_out(x, grid, queries=64), in_sample(x, grid, 16, queries=64)
    for edge, bare in zip((bracket.candidates[1], bracket.lower), plain, strict=True):
        assert float(edge.stderr / bare.stderr) < 0.4
        assert abs(float(edge.mean - bare.mean)) < 4 * float(bare.stderr)
    variance = float(x.double().var(0, correction=0).mean())
    assert float(bracket.lower.mean) == pytest.approx(variance, rel=1e-2)


def test_sorted_data_is_mixed():
    """Data in order of class has blocks and folds like any other."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(200) // 100
    x = torch.randn(200, 3, generator=generator) + 4 * labels[:, None]
    first, second = (
        measure(data, log_snr=GRID, noises=8) for data in (x, x[torch.randperm(200, generator=generator)])
    )
    for a, b in ((first.lower, second.lower), (first.upper, second.upper)):
        assert ((a.mean - b.mean).abs() <= 4 * (a.stderr + b.stderr)).all()


@pytest.mark.parametrize(
    "x",
    [
        torch.randint(0, 256, (60, 1, 3, 3), generator=torch.Generator().manual_seed(0)).to(torch.uint8),
        torch.randint(-3, 4, (60, 2), generator=torch.Generator().manual_seed(0)),
        torch.randn(30, 4, generator=torch.Generator().manual_seed(0)).repeat(2, 1),
        torch.cat([torch.zeros(60, 2), torch.ones(3, 2)]),
        torch.randn(8, 1, generator=torch.Generator().manual_seed(0)),
    ],
    ids=["bytes", "few whole numbers", "all twice", "two atoms", "eight points"],
)
def test_odd_data_gives_an_honest_bracket(x):
    bracket = measure(x, noises=4)
    for profile in (bracket.lower, bracket.upper, *bracket.candidates):
        assert torch.isfinite(profile.mean).all()
        assert torch.isfinite(profile.stderr).all()
    gap = bracket.upper.mean - bracket.lower.mean
    assert (gap >= -4 * (bracket.upper.stderr + bracket.lower.stderr)).all()
    variance = float(x.double().flatten(1).var(0, correction=0).mean())
    assert float(bracket.lower.mean[0]) == pytest.approx(variance, rel=1e-2)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"noises": 0}, "noises"),
        ({"noises": 10**9}, "more than enough"),
        ({"queries": 3}, "queries = 3"),
        ({"queries": 61}, "queries = 61"),
        ({"log_snr": torch.tensor([1.0, 1.0])}, "increasing"),
    ],
)
def test_bad_options_are_named(options, told):
    with pytest.raises(UserError, match=told):
        measure(torch.randn(60, 2), **options)


@pytest.fixture(scope="module")
def bracket():
    x = torch.randn(60, 1, 2, 2, generator=torch.Generator().manual_seed(3))
    seen = []
    made = measure(x, log_snr=GRID, progress=seen.append, data={"name": "noise", "shape": [1, 2, 2]})
    assert seen == sorted(seen)
    assert seen[-1] == 1.0
    return made


def test_record_says_what_was_done(bracket):
    assert bracket.lower.bound == "lower"
    assert bracket.upper.bound == "upper"
    assert [candidate.method for candidate in bracket.candidates] == [
        "in_sample_tower",
        "leave_one_out",
        "spectral",
    ]
    assert bracket.upper.counts["points"] == 60
    assert bracket.upper.data == {"name": "noise", "shape": [1, 2, 2]}
    assert bracket.lower.dim == 4


def test_saved_bracket_comes_back_exactly(bracket, tmp_path):
    path = tmp_path / "deep" / "profile.json"
    bracket.save(path)
    loaded = Bracket.load(path)
    for before, after in zip(
        (bracket.lower, bracket.upper, *bracket.candidates),
        (loaded.lower, loaded.upper, *loaded.candidates),
        strict=True,
    ):
        assert before.to_dict() == after.to_dict()
        assert before.digest == after.digest
    assert json.loads(path.read_text())["schema"] == 2


def test_damaged_files_are_named(bracket, tmp_path):
    path = tmp_path / "profile.json"
    bracket.save(path)
    content = json.loads(path.read_text())

    def changed(**keys):
        return json.dumps({**content, **keys})

    lower = content["lower"]
    cases = [
        (path.read_text()[: len(path.read_text()) // 2], "cut short"),
        ("", "cut short"),
        ("[1, 2]", "no bracket"),
        ("{}", "no bracket"),
        (changed(kind="profile"), "is a profile, but a bracket is needed"),
        (changed(schema=1), "schema 1"),
        (changed(extra=1), "unknown key 'extra'"),
        (changed(lower=[]), "lower: must be an object"),
        (changed(candidates={}), "candidates"),
        (changed(lower={**lower, "mean": lower["mean"][:-1]}), "lower: .*one length"),
        (changed(lower={**lower, "mean": ["a"] * len(GRID)}), "lower: 'mean' must be a list of numbers"),
        (changed(lower={**lower, "mean": [math.nan] * len(GRID)}), "lower: mean must be a list of finite"),
        (changed(lower={**lower, "stderr": [-1.0] * len(GRID)}), "not be negative"),
        (changed(lower={**lower, "dim": 2.5}), "'dim' must be a whole number"),
        (changed(lower={**lower, "quantity": "noise"}), "unknown quantity 'noise'"),
        (changed(candidates=[{**lower, "bound": "up"}]), "candidate 0: unknown bound"),
        (changed(lower={key: value for key, value in lower.items() if key != "mean"}), "'mean' is missing"),
    ]
    for text, told in cases:
        path.write_text(text)
        with pytest.raises(UserError, match=told) as raised:
            Bracket.load(path)
        assert str(raised.value).startswith(str(path))
        assert "\n" not in str(raised.value)
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match="not JSON"):
        Bracket.load(path)
    with pytest.raises(UserError, match="cannot be read"):
        Bracket.load(tmp_path / "absent.json")
    with pytest.raises(UserError, match="cannot be read"):
        Bracket.load(tmp_path)


def test_an_unwritable_place_is_named(bracket, tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(UserError, match="cannot be written"):
        bracket.save(blocked / "profile.json")
    profile = VarianceProfile(**{**bracket.lower.__dict__, "data": {"name": object()}})
    with pytest.raises(UserError, match="cannot be written as JSON"):
        profile.save(tmp_path / "profile.json")
    profile = VarianceProfile(**{**bracket.lower.__dict__, "data": {"mean": math.nan}})
    with pytest.raises(UserError, match="cannot be written as JSON"):
        profile.save(tmp_path / "profile.json")
    assert not (tmp_path / "profile.json").exists()
