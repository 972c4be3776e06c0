import hashlib

import numpy as np
import pytest
import scipy.stats
import torch

from flowtempo import randomness
from flowtempo.errors import UserError
from flowtempo.randomness import generator, normal, permutation, uniform

MASK = (1 << 64) - 1


def philox_block(counter: list[int], key: list[int]) -> list[int]:
    """Philox 4x64-10 as Salmon et al. (SC 2011) write it."""
    c, k = list(counter), list(key)
    for _ in range(10):
        high0, low0 = divmod(0xD2E7470EE14C6C93 * c[0], 1 << 64)
        high1, low1 = divmod(0xCA5A826395121157 * c[2], 1 << 64)
        c = [high1 ^ c[1] ^ k[0], low1, high0 ^ c[3] ^ k[1], low0]
        k = [(k[0] + 0x9E3779B97F4A7C15) & MASK, (k[1] + 0xBB67AE8584CAA73B) & MASK]
    return c


def words(kind: str, seed: int, stream: str, step: int, count: int) -> list[int]:
    name = hashlib.blake2b(f"{kind}:{stream}".encode(), digest_size=8).digest()
    key = [seed, int.from_bytes(name, "little")]
    blocks = [philox_block([block + 1, 0, 0, step], key) for block in range(-(-count // 4))]
    return [word for block in blocks for word in block][:count]


def test_uniform_is_philox_of_seed_stream_and_step():
    expected = [((word >> 12) + 0.5) * 2.0**-52 for word in words("uniform", 7, "time", 2**40, 9)]
    assert uniform(7, "time", 2**40, 9).tolist() == expected


def test_permutation_sorts_the_words_of_philox():
    expected = np.argsort(np.array(words("permutation", 3, "time", 5, 10), dtype=np.uint64))
    assert permutation(3, "time", 5, 10).tolist() == expected.tolist()


def test_a_row_of_normals_is_numpys_at_that_counter():
    name = hashlib.blake2b(b"normal:noise", digest_size=8).digest()
    source = np.random.Philox(
        key=np.array([5, int.from_bytes(name, "little")], dtype=np.uint64),
        counter=np.array([0, 0, 2**40, 7], dtype=np.uint64),
    )
    expected = np.random.Generator(source).standard_normal(6, dtype=np.float32)
    assert normal(5, "noise", 7, [3, 2**40], (2, 3))[1].flatten().tolist() == expected.tolist()


def test_uniform_stays_open_for_the_extreme_words(monkeypatch):
    monkeypatch.setattr(randomness, "_words", lambda *_: np.array([[0, MASK]], dtype=np.uint64))
    assert uniform(0, "time", 0, 2).tolist() == [2.0**-53, 1 - 2.0**-53]


def test_uniform_and_normal_follow_their_distributions():
    assert scipy.stats.kstest(uniform(0, "x", 0, 100_000), "uniform").pvalue > 1e-3
    rows = normal(0, "x", 0, range(500), (200,))
    assert rows.dtype == torch.float32
    assert scipy.stats.kstest(rows.flatten(), "norm").pvalue > 1e-3


def test_normals_of_neighbouring_indices_and_steps_are_uncorrelated():
    size = 4000
    rows = torch.cat([normal(0, "noise", step, range(4), (size,)) for step in range(3)]).double()
    correlation = rows @ rows.T / size
    off_diagonal = correlation - torch.diag(correlation.diag())
    assert off_diagonal.abs().max() < 5 / size**0.5


def test_a_row_depends_on_its_index_alone():
    together = normal(1, "noise", 4, range(10), (3, 5))
    assert together.shape == (10, 3, 5)
    alone = torch.cat([normal(1, "noise", 4, [index], (3, 5)) for index in reversed(range(10))]).flip(0)
    assert torch.equal(together, alone)
    assert torch.equal(normal(1, "noise", 4, torch.tensor([8, 2, 8]), (3, 5)), together[[8, 2, 8]])
    odd = normal(1, "noise", 4, range(10), (7,))  # an odd row leaves half a word in the generator's buffer
    assert torch.equal(odd[4], normal(1, "noise", 4, [4], (7,))[0])


def test_a_scalar_row_has_the_empty_shape():
    assert normal(0, "noise", 0, range(3), ()).shape == (3,)
    assert normal(0, "noise", 0, [], (2, 2)).shape == (0, 2, 2)


def test_uniform_does_not_depend_on_the_count():
    assert torch.equal(uniform(1, "time", 4, 3), uniform(1, "time", 4, 100)[:3])


@pytest.mark.parametrize("count", [1, 2, 257])
def test_permutation_is_one(count):
    order = permutation(0, "time", 0, count)
    assert order.dtype == torch.int64
    assert order.sort().values.tolist() == list(range(count))


def test_permutations_are_fair():
    counts = torch.zeros(4, 4)
    for step in range(2000):
        counts[torch.arange(4), permutation(0, "time", step, 4)] += 1
    assert scipy.stats.chisquare(counts.flatten()).pvalue > 1e-3


def test_every_coordinate_of_the_key_changes_the_draw():
    calls = [(0, "a", 0, 0), (1, "a", 0, 0), (0, "b", 0, 0), (0, "a", 1, 0), (0, "a", 0, 1), (1, "a", 1, 1)]
    firsts = {generator(*call).random() for call in calls}
    firsts |= {float(normal(seed, stream, step, [index], (1,))) for seed, stream, step, index in calls}
    assert len(firsts) == 2 * len(calls)
    assert not torch.equal(uniform(0, "a", 0, 4), uniform(0, "a", 1, 4))


def test_repeats_bit_for_bit():
    assert torch.equal(normal(5, "noise", 9, range(4), (8,)), normal(5, "noise", 9, range(4), (8,)))
    assert generator(5, "labels", 9, 2).random() == generator(5, "labels", 9, 2).random()


def test_global_generators_are_neither_read_nor_moved():
    np.random.seed(0)  # noqa: NPY002
    torch.manual_seed(0)
    before, torch_before = np.random.get_state(), torch.get_rng_state()  # noqa: NPY002
    first = [uniform(0, "t", 0, 5), normal(0, "t", 0, [1], (3,)), permutation(0, "t", 0, 5)]
    after = np.random.get_state()  # noqa: NPY002
    assert before[2] == after[2]
    assert np.array_equal(before[1], after[1])
    assert torch.equal(torch_before, torch.get_rng_state())
    np.random.seed(1)  # noqa: NPY002
    torch.manual_seed(1)
    second = [uniform(0, "t", 0, 5), normal(0, "t", 0, [1], (3,)), permutation(0, "t", 0, 5)]
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize(
    "call",
    [
        lambda: uniform(-1, "t", 0, 1),
        lambda: uniform(0, "t", -1, 1),
        lambda: uniform(0, "t", 0, -1),
        lambda: normal(0, "t", 0, [-1], (1,)),
        lambda: generator(2**64, "t"),
    ],
)
def test_numbers_out_of_range_raise(call):
    with pytest.raises(UserError, match="out of range"):
        call()
