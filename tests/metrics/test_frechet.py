import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowtempo.metrics import frechet
from flowtempo.metrics.frechet import Statistics, distance, estimate


def gaussian(n, d, seed, scale=1.0, shift=0.0):
    return np.random.default_rng(seed).normal(shift, scale, (n, d))


def covariance(d, rank, seed):
    factor = gaussian(d, rank, seed)
    return factor @ factor.T


def by_svd(a, b):
    """The other closed form: the nuclear norm of the product of the roots."""

    def root(cov):
        values, vectors = np.linalg.eigh(cov)
        return vectors * np.sqrt(np.maximum(values, 0)) @ vectors.T

    cross = np.linalg.svd(root(a.cov) @ root(b.cov), compute_uv=False).sum()
    return ((a.mean - b.mean) ** 2).sum() + np.trace(a.cov) + np.trace(b.cov) - 2 * cross


def test_closed_form_of_isotropic_gaussians():
    a = Statistics(np.zeros(2), np.eye(2), 100)
    b = Statistics(np.array([3.0, 4.0]), 4 * np.eye(2), 100)
    assert distance(a, b) == 27.0
    assert distance(b, a) == 27.0


@given(st.integers(1, 30), st.integers(0, 10_000))
def test_closed_form_of_commuting_covariances(d, seed):
    rng = np.random.default_rng(seed)
    p, q, shift = rng.exponential(size=d), rng.exponential(size=d), rng.normal(size=d)
    basis = np.linalg.qr(rng.normal(size=(d, d)))[0]
    a = Statistics(np.zeros(d), basis * p @ basis.T, 2)
    b = Statistics(shift, basis * q @ basis.T, 2)
    want = (shift**2).sum() + ((np.sqrt(p) - np.sqrt(q)) ** 2).sum()
    assert distance(a, b) == pytest.approx(want, rel=1e-9, abs=1e-9)


def test_closed_form_of_an_affine_map():
    # y = A x with A symmetric positive definite is the optimal transport: the distance is E|x - A x|^2,
    # also when the covariances do not commute
    d = 8
    cov, move = covariance(d, d, 0), covariance(d, d, 1) + np.eye(d)
    a = Statistics(np.zeros(d), cov, 2)
    b = Statistics(np.zeros(d), move @ cov @ move, 2)
    want = np.trace((np.eye(d) - move) @ cov @ (np.eye(d) - move))
    assert distance(a, b) == pytest.approx(want, rel=1e-10)


def test_fewer_vectors_than_features():
    a, b = Statistics.of(gaussian(32, 64, 0)), Statistics.of(gaussian(32, 64, 1))
    assert distance(a, a) == pytest.approx(0, abs=1e-5)
    for seed in range(20):  # rounding makes the bare formula negative on some of these
        c = Statistics.of(gaussian(32, 64, seed))
        assert distance(c, c) >= 0
    assert by_svd(a, a) == pytest.approx(0, abs=1e-5)
    assert isinstance(distance(a, b), float)
    assert distance(a, b) == pytest.approx(by_svd(a, b), abs=1e-4)
    # exact for any rank: the nuclear norm of the product of the centred data matrices
    xa, xb = (gaussian(32, 64, s) for s in (0, 1))
    cross = np.linalg.svd((xa - xa.mean(0)) @ (xb - xb.mean(0)).T / 31, compute_uv=False).sum()
    want = ((a.mean - b.mean) ** 2).sum() + np.trace(a.cov) + np.trace(b.cov) - 2 * cross
    assert distance(a, b) == pytest.approx(want, rel=1e-12)


@settings(deadline=None)
@given(
    st.integers(1, 20), st.integers(1, 20), st.integers(1, 20), st.integers(0, 10_000), st.floats(1e-3, 1e3)
)
def test_properties(d, rank_a, rank_b, seed, scale):
    a = Statistics(gaussian(1, d, seed)[0], covariance(d, rank_a, seed + 1), 50)
    b = Statistics(scale * gaussian(1, d, seed + 2)[0], scale**2 * covariance(d, rank_b, seed + 3), 50)
    size = 1e-6 * (np.trace(a.cov) + np.trace(b.cov))
    value = distance(a, b)
    assert value >= 0
    assert distance(b, a) == pytest.approx(value, abs=size)
    assert distance(a, a) == pytest.approx(0, abs=size)
    assert value == pytest.approx(by_svd(a, b), abs=size)
    turn = np.linalg.qr(gaussian(d, d, seed + 4))[0]
    turned = [Statistics(turn @ s.mean + 5, turn @ s.cov @ turn.T, s.count) for s in (a, b)]
    assert distance(*turned) == pytest.approx(value, abs=size)
    bigger = [Statistics(3 * s.mean, 9 * s.cov, s.count) for s in (a, b)]
    assert distance(*bigger) == pytest.approx(9 * value, abs=9 * size)


def test_statistics_against_numpy_in_float64():
    x = gaussian(1000, 5, 0, shift=1e4).astype(np.float32)
    got = Statistics.of(x)
    np.testing.assert_allclose(got.mean, x.astype(float).mean(0), rtol=1e-14)
    np.testing.assert_allclose(got.cov, np.cov(x.astype(float).T), rtol=1e-10)


@given(st.lists(st.integers(1, 40), min_size=1, max_size=6), st.integers(0, 1000))
def test_statistics_of_blocks_are_those_of_the_whole(sizes, seed):
    x = gaussian(sum(sizes), 4, seed, shift=100)
    blocks = np.split(x, np.cumsum(sizes)[:-1])
    whole, streamed = Statistics.of(x), Statistics.of(iter(blocks))
    assert streamed.count == len(x)
    np.testing.assert_allclose(streamed.mean, whole.mean, rtol=1e-12)
    np.testing.assert_allclose(streamed.cov, whole.cov, rtol=1e-9, atol=1e-9)
    if len(blocks) > 1:
        rest = whole.without(Statistics.of(blocks[0]))
        want = Statistics.of(x[sizes[0] :])
        assert rest.count == want.count
        np.testing.assert_allclose(rest.mean, want.mean, rtol=1e-11)
        np.testing.assert_allclose(rest.cov, want.cov, rtol=1e-9, atol=1e-7)


def test_jackknife_is_the_spread_over_repeated_draws():
    d, n = 6, 400
    reference = Statistics.of(gaussian(20_000, d, 0))
    draws = [estimate(gaussian(n, d, seed, 1.3, 0.2), reference) for seed in range(1, 201)]
    spread = np.std([draw.value for draw in draws], ddof=1)
    typical = np.sqrt(np.mean([draw.stderr**2 for draw in draws]))
    assert typical == pytest.approx(spread, rel=0.15)


def test_jackknife_equals_leaving_out_by_hand():
    x, reference = gaussian(40, 3, 1), Statistics.of(gaussian(100, 3, 0))
    result = estimate(x, reference, blocks=20)
    assert result.value == pytest.approx(distance(Statistics.of(x), reference), rel=1e-12)
    order = np.argsort(np.random.Philox(key=0).random_raw(40))
    rests = [np.delete(x, order[i : i + 2], axis=0) for i in range(0, 40, 2)]
    left = [distance(Statistics.of(rest), reference) for rest in rests]
    want = np.sqrt(19 / 20 * ((left - np.mean(left)) ** 2).sum())
    assert result.stderr == pytest.approx(want, rel=1e-9)


@pytest.mark.parametrize("order", ["sorted", "cyclic"])
def test_jackknife_does_not_depend_on_the_order_of_the_classes(order):
    # blocks of one class each would make it seven times too large
    labels = np.repeat(np.arange(20), 50) if order == "sorted" else np.arange(1000) % 20
    x = gaussian(1000, 2, 0) + labels[:, None]
    reference = Statistics.of(x + 3)
    shuffled = [np.random.default_rng(seed).permutation(x) for seed in range(20)]
    usual = np.mean([estimate(rows, reference).stderr for rows in shuffled])
    assert estimate(x, reference).stderr == pytest.approx(usual, rel=0.5)


def test_estimate_with_few_samples():
    reference = Statistics.of(gaussian(100, 3, 0))
    result = estimate(gaussian(5, 3, 1), reference)
    assert result.blocks == 2
    assert np.isfinite([result.value, result.stderr]).all()
    with pytest.raises(ValueError, match="4 samples or more, got 3"):
        estimate(gaussian(3, 3, 1), reference)


def test_faults():
    a, b = Statistics.of(gaussian(9, 2, 0)), Statistics.of(gaussian(9, 3, 0))
    with pytest.raises(ValueError, match="2 features against 3"):
        distance(a, b)
    for block in (np.zeros(3), np.zeros((0, 3)), np.zeros((3, 0))):
        with pytest.raises(ValueError, match="must be"):
            Statistics.of(block)
    with pytest.raises(ValueError, match="no features"):
        Statistics.of(iter([]))
    with pytest.raises(ValueError, match="NaN"):
        Statistics.of(np.array([[1.0], [np.nan]]))
    with pytest.raises(ValueError, match="cannot take"):
        a.without(a)


def test_rounding_in_the_null_space_is_dropped():
    # 30 of 31 dimensions are noise of 1e-17: its square roots must not add up
    values = np.r_[np.random.default_rng(0).normal(size=30) * 1e-17, 1.0]
    assert frechet._root(np.diag(values)).shape == (31, 1)
