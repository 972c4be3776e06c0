"""Measuring in rounds: what is reached, resumed, shared and streamed gives the numbers of one plain call."""

import math

import numpy as np
import pytest
import torch

from flowtempo.errors import UserError
from flowtempo.variance import Share, in_sample, measure, measure_by_class, measure_groups
from flowtempo.variance.bracket import gaussian_shape
from flowtempo.variance.points import Stream, prepare
from flowtempo.variance.rounds import Rounds

GRID = torch.tensor([-10.0, -4, -2, 0, 2, 4, 10], dtype=torch.float64)


def mixture(count, dim=6, seed=0):
    """Two clouds, so that every edge has a range of its own."""
    generator = torch.Generator().manual_seed(seed)
    centres = 2 * torch.randint(0, 2, (count, 1), generator=generator) - 1
    return 0.4 * torch.randn(count, dim, generator=generator) + centres


def curves(bracket):
    return [
        (each.mean, each.stderr, each.without) for each in (bracket.lower, bracket.upper, *bracket.candidates)
    ]


def assert_equal(first, second):
    for a, b in zip(curves(first), curves(second), strict=True):
        assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def test_the_target_is_reached_with_few_queries():
    x = mixture(3000)
    bracket = measure(x, log_snr=GRID, target_stderr=0.02)
    shape = gaussian_shape(bracket.lower.second_moment, GRID)
    for edge in (bracket.lower, bracket.upper):
        assert (edge.stderr <= 0.02 * shape).all()
        assert edge.counts["fewest_queries"] < edge.counts["queries"] < 3000
    tight = measure(x, log_snr=GRID, target_stderr=0.01)
    assert tight.upper.counts["queries"] > bracket.upper.counts["queries"]
    full = measure(x, log_snr=GRID, target_stderr=0, queries=3000)
    assert full.upper.counts["fewest_queries"] == 3000
    for some, every in ((bracket.lower, full.lower), (bracket.upper, full.upper)):
        assert ((some.mean - every.mean).abs() <= 4 * some.stderr.hypot(every.stderr)).all()


def test_leave_one_out_gets_no_queries_where_it_cannot_matter():
    """A Gaussian: the linear bound is the truth, and leave-one-out is far behind it under signal."""
    x = torch.randn(2000, 32, generator=torch.Generator().manual_seed(0))
    bracket = measure(x, log_snr=GRID, target_stderr=0.002)
    assert bracket.upper.counts["fewest_queries"] == 64
    true = 1 / (1 + GRID.exp())
    assert ((bracket.upper.mean - true).abs() <= 4 * bracket.upper.stderr + 0.02 * true).all()


@pytest.mark.slow
def test_stopping_early_leaves_bounds():
    """Without bias in the lower edge; the upper one is looser by less than the target, and never tighter.

    Means over 100 data sets that stop where they like, against the same with all queries.
    """
    differences, stopped = [], 0
    for seed in range(100):
        x = mixture(600, 2, seed)
        some = measure(x, log_snr=GRID[1:4], target_stderr=0.02, noises=2, seed=seed)
        every = measure(x, log_snr=GRID[1:4], target_stderr=0, noises=2, seed=seed)
        stopped += some.upper.counts["fewest_queries"] < 600
        differences.append(
            torch.stack([some.lower.mean - every.lower.mean, some.upper.mean - every.upper.mean])
        )
    assert stopped > 90
    found = torch.stack(differences)
    lower, upper = found.mean(0)
    error = 4 * found.std(0) / math.sqrt(100)
    assert (lower.abs() < error[0]).all()
    assert (upper > -error[1]).all()
    assert (upper < error[1] + 0.02 * gaussian_shape(1.16, GRID[1:4])).all()


class Stop(BaseException):
    pass


@pytest.mark.parametrize("after", [1, 9])
def test_a_stopped_measurement_goes_on(after, tmp_path, monkeypatch):
    x, state = mixture(900), tmp_path / "profile.json.partial"
    monkeypatch.setattr("flowtempo.variance.rounds._INNER_NUMBERS", 900 * 100)
    plain = measure(x, log_snr=GRID)
    calls, compute = [], Rounds._compute

    def stopping(self, *arguments):
        if len(calls) == after:
            raise Stop
        calls.append(arguments[0])
        compute(self, *arguments)

    with monkeypatch.context() as patched:
        patched.setattr(Rounds, "_compute", stopping)
        with pytest.raises(Stop):
            measure(x, log_snr=GRID, state=state)
    assert state.exists()
    again = []

    def counting(self, *arguments):
        again.append(arguments[0])
        compute(self, *arguments)

    monkeypatch.setattr(Rounds, "_compute", counting)
    assert_equal(measure(x, log_snr=GRID, state=state), plain)
    count = len(again)
    again.clear()
    measure(x, log_snr=GRID)
    assert len(again) == count + after
    # What is complete is not measured again.
    again.clear()
    assert_equal(measure(x, log_snr=GRID, state=state), plain)
    assert again == []


def test_a_state_of_something_else_is_refused(tmp_path):
    x, state = mixture(100), tmp_path / "state"
    measure(x, log_snr=GRID, state=state)
    for other, options in ((x + 1e-3 * torch.randn(100, 6), {}), (x, {"seed": 1}), (x, {"noises": 3})):
        with pytest.raises(UserError, match="other data or with other settings"):
            measure(other, log_snr=GRID, state=state, **options)
    for damage in (b"", b"nonsense", state.read_bytes()[:-40]):
        state.write_bytes(damage)
        with pytest.raises(UserError, match="delete it"):
            measure(x, log_snr=GRID, state=state)
    np.savez(tmp_path / "pickle.npz", identity=np.array([{}], dtype=object))
    with pytest.raises(UserError, match="delete it"):
        measure(x, log_snr=GRID, state=tmp_path / "pickle.npz")
    (tmp_path / "file").touch()
    with pytest.raises((UserError, OSError)):
        measure(x, log_snr=GRID, state=tmp_path / "file" / "state")


def test_a_unit_of_another_size_is_refused(tmp_path):
    x, state = mixture(100), tmp_path / "state"
    measure(x, log_snr=GRID, state=state)
    units = dict(np.load(state))
    units["0.3"] = units["0.3"][:-1]
    with open(state, "wb") as file:
        np.savez(file, **units)
    with pytest.raises(UserError, match="damaged"):
        measure(x, log_snr=GRID, state=state)


class Together:
    """Processes that take turns: each call of `sum` waits in `measure` of one until all have called."""

    def __init__(self, world_size):
        import threading

        self.world_size, self.barrier = world_size, threading.Barrier(world_size)
        self.parts = [None] * world_size

    def share(self, rank):
        def add(tensor):
            self.parts[rank] = tensor
            self.barrier.wait()
            total = torch.stack(self.parts).sum(0)
            self.barrier.wait()
            return total

        return Share(rank, self.world_size, add)


@pytest.mark.parametrize("world_size", [2, 5])
def test_processes_share_the_work_and_give_the_same_numbers(world_size, tmp_path, monkeypatch):
    from concurrent.futures import ThreadPoolExecutor

    x, state = mixture(900), tmp_path / "state"
    monkeypatch.setattr("flowtempo.variance.rounds._INNER_NUMBERS", 900 * 100)
    plain = measure(x, log_snr=GRID)
    for _ in range(2):  # the second time everything is read from the state
        together = Together(world_size)
        with ThreadPoolExecutor(world_size) as pool:
            brackets = list(
                pool.map(
                    lambda rank, all=together: measure(x, log_snr=GRID, state=state, share=all.share(rank)),
                    range(world_size),
                )
            )
        for bracket in brackets:
            assert_equal(bracket, plain)


class Rows:
    """A source that counts what is read."""

    def __init__(self, x):
        self.x, self.shape, self.most = x, tuple(x.shape[1:]), 0

    def __len__(self):
        return len(self.x)

    def batch(self, indices):
        self.most = max(self.most, len(indices))
        assert bool((indices.diff() >= 0).all())  # rising, as a disk likes it
        return self.x[indices], None


def test_one_more_query_is_one_more_query():
    x = mixture(600)
    some, more = (measure(x, log_snr=GRID, target_stderr=1e-9, queries=n) for n in (64, 65))
    assert (some.upper.counts["queries"], more.upper.counts["queries"]) == (64, 65)
    assert ((some.upper.mean - more.upper.mean).abs() < 5 * some.upper.stderr).all()


def test_a_source_gives_the_numbers_of_its_tensor(monkeypatch):
    x = mixture(900).reshape(900, 1, 2, 3)
    plain = measure(x, log_snr=GRID)
    assert_equal(measure(Rows(x), log_snr=GRID), plain)
    # As if it did not fit into the memory.
    monkeypatch.setattr("flowtempo.variance.points._memory", lambda: 4 * 900 * 6)
    assert isinstance(prepare(Rows(x), seed=0).x, Stream)
    monkeypatch.setattr("flowtempo.variance.points._ROWS_BYTES", 8 * 6 * 100)
    source = Rows(x)
    streamed = measure(source, log_snr=GRID)
    assert source.most <= 100
    for a, b in zip(curves(streamed), curves(plain), strict=True):
        for one, other in zip(a, b, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-9)


def test_a_source_is_checked_like_a_tensor():
    x = mixture(100)
    x[7, 2] = math.nan
    with pytest.raises(UserError, match="first in point 7"):
        measure(Rows(x))
    with pytest.raises(UserError, match="does not vary"):
        measure(Rows(torch.ones(100, 2)))
    with pytest.raises(UserError, match="at least 8 points"):
        measure(Rows(torch.ones(1, 2)))


def test_effective_sample_size_counts_the_points_that_share_the_weight():
    """At low log-SNR all points share it, at high each is alone; copies count once."""
    x = mixture(400, 2)
    grid = torch.tensor([-30.0, -4, 0, 4, 30], dtype=torch.float64)
    ess = in_sample(x, grid, 8).ess
    assert float(ess[0]) == pytest.approx(400, rel=1e-3)
    assert float(ess[-1]) == pytest.approx(1, abs=1e-6)
    assert (ess.diff() < 0).all()
    twice = in_sample(x.repeat(2, 1), grid, 8).ess
    assert float(twice[0]) == pytest.approx(400, rel=1e-3)
    assert float(twice[-1]) == pytest.approx(1, abs=1e-6)
    # Against its definition, 1 / E sum_j w_j^2, from plain differences.
    x = x[:100]
    noises = torch.randn(500, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    found = in_sample(x, grid[1:4], noises).ess
    for value, log_snr in zip(found.tolist(), grid[1:4].tolist(), strict=True):
        r = math.exp(log_snr / 2)
        z = x.double()[:, None] + noises / r
        weight = (-(r**2) / 2 * torch.cdist(z.flatten(0, 1), x.double()).square()).softmax(1)
        assert value == pytest.approx(1 / float(weight.square().sum(1).mean()), rel=0.1)


def test_collapse_is_said():
    x = torch.randn(200, 512, generator=torch.Generator().manual_seed(0))
    profile = in_sample(x, None, 8)
    low, high = profile.collapsed
    assert -6 < low < -2
    assert high == math.inf
    assert in_sample(x, torch.tensor([-14.0, -12.0]), 8).collapsed is None


def test_by_class_is_the_average_of_the_classes():
    x = mixture(800, 3)
    labels = (x.mean(1) > 0).long()
    bracket = measure_by_class(x, labels, log_snr=GRID, target_stderr=0.02)
    assert bracket.lower.quantity == bracket.upper.quantity == "class_posterior_variance"
    # Given its class the data is N(+-1, 0.16 I).
    true = 0.16 / (1 + 0.16 * GRID.exp())
    assert (bracket.lower.mean <= true + 4 * bracket.lower.stderr).all()
    assert (bracket.upper.mean >= true - 4 * bracket.upper.stderr).all()
    assert ((bracket.upper.mean - true) / true < 0.15).all()
    whole = measure(x, log_snr=GRID)
    assert float(bracket.upper.mean[0]) < 0.3 * float(whole.lower.mean[0])
    with pytest.raises(UserError, match="class 2 has 5 points"):
        measure_by_class(x[:80], torch.cat([labels[:75], torch.full((5,), 2)]), log_snr=GRID)


def test_groups_of_other_sizes_are_averaged_per_image():
    generator = torch.Generator().manual_seed(0)
    small = torch.randn(300, 4, generator=generator)
    large = 2 * torch.randn(100, 9, generator=generator)
    seen = []
    bracket = measure_groups(
        [("4", small, {"name": "a"}), ("9", large, {"name": "b"})], log_snr=GRID, progress=seen.append
    )
    assert seen == sorted(seen)
    assert seen[-1] == pytest.approx(1.0)
    true = 0.75 / (1 + GRID.exp()) + 0.25 * 4 / (1 + 4 * GRID.exp())
    assert (bracket.lower.mean <= true + 4 * bracket.lower.stderr).all()
    assert (bracket.upper.mean >= true - 4 * bracket.upper.stderr).all()
    # More queries than a group has points are all of its points; too few for the jackknife are an error.
    capped = measure_groups(
        [("4", small, None), ("9", large, None)], log_snr=GRID, target_stderr=0, queries=200
    )
    assert capped.upper.counts["queries"] == 300
    with pytest.raises(UserError, match=r"^4: queries = 15"):
        measure_groups([("4", small, None), ("9", large, None)], log_snr=GRID, queries=15)
    with pytest.raises(UserError, match=r"^odd: .*does not vary"):
        measure_groups([("4", small, None), ("odd", torch.ones(20, 2), None)], log_snr=GRID)
