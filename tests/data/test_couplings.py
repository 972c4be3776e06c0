import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from flowtempo.data import COUPLINGS, OptimalTransport, OptimalTransportByLabel, coupling
from flowtempo.data.couplings import assignment
from flowtempo.errors import UserError


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def cost(x0, x1):
    return float((x0.double() - x1.double()).square().sum())


@given(st.integers(2, 6), st.integers(1, 3), st.integers(0, 10_000))
def test_no_permutation_costs_less(count, dim, seed):
    x0, x1 = normal(count, dim, seed=seed), 2 * normal(count, dim, seed=seed + 1) + 1
    least = min(cost(x0[list(order)], x1) for order in itertools.permutations(range(count)))
    assert cost(OptimalTransport().pair(x0, x1), x1) == pytest.approx(least, rel=1e-5)


def test_on_the_line_the_order_is_kept():
    x0, x1 = normal(200, 1).double(), normal(200, 1, seed=1).double().exp()
    paired = OptimalTransport().pair(x0, x1)
    assert torch.equal(paired[x1[:, 0].argsort()], x0.sort(0)[0])


def test_labels_stay_with_their_images_and_all_noise_is_used_once():
    label = torch.arange(64)
    x1 = (10 * label).float()[:, None]
    x0 = 300 * normal(64, 1)
    given_label, given_image = label.clone(), x1.clone()
    paired = OptimalTransport(16).pair(x0, x1, label)
    assert torch.equal(given_image[:, 0], 10.0 * given_label)
    assert torch.equal(x1, given_image)
    assert not torch.equal(paired, x0)
    assert torch.equal(paired.sort(0)[0], x0.sort(0)[0])


def test_the_noise_stays_standard_normal_over_batches():
    """Every moment of a batch is the same as before, and so is their distribution."""
    for seed in range(5):
        x0, x1 = normal(32, 4, 4, seed=seed), normal(32, 4, 4, seed=100 + seed)
        paired = OptimalTransport().pair(x0, x1)
        assert torch.equal(paired.flatten(1)[paired[:, 0, 0].argsort()], x0.flatten(1)[x0[:, 0, 0].argsort()])


def test_the_cost_falls():
    x0, x1 = normal(128, 8), normal(128, 8, seed=1)
    whole, halves = OptimalTransport(128).pair(x0, x1), OptimalTransport(64).pair(x0, x1)
    assert cost(whole, x1) < cost(halves, x1) < 0.9 * cost(x0, x1)


def test_within_a_label_noise_keeps_its_label():
    x0, x1, y = normal(60, 2), normal(60, 2, seed=1), torch.arange(60) % 3
    x1[:, 0] += 10 * y  # without regard to labels the noise to the right would go to the last class
    by_label = OptimalTransportByLabel(60).pair(x0, x1, y)
    for label in range(3):
        mine = y == label
        assert torch.equal(by_label[mine].sort(0)[0], x0[mine].sort(0)[0])
        assert torch.equal(by_label[mine], OptimalTransport(60).pair(x0[mine], x1[mine]))
    whole = OptimalTransport(60).pair(x0, x1, y)
    assert float(whole[y == 2, 0].mean() - whole[y == 0, 0].mean()) > 1
    assert abs(float(by_label[y == 2, 0].mean() - by_label[y == 0, 0].mean())) < 1
    with pytest.raises(ValueError, match="needs labels"):
        OptimalTransportByLabel().pair(x0, x1)


@pytest.mark.parametrize("batch_size", [24, 30])
@pytest.mark.parametrize("shares", [1, 2, 3])
def test_pairs_do_not_depend_on_the_number_of_processes(batch_size, shares):
    coupled = OptimalTransport(8)
    x0, x1 = normal(batch_size, 3), normal(batch_size, 3, seed=1)
    length, parts = batch_size // shares, []
    for rank in range(shares):
        local = range(rank * length, (rank + 1) * length)
        span = coupled.span(local, batch_size)
        assert span.start <= local.start
        assert local.stop <= span.stop <= batch_size
        assert len(span) <= len(local) + 14
        rows = slice(span.start, span.stop)
        parts.append(coupled.pair(x0[rows], x1[rows])[local.start - span.start :][:length])
    assert torch.equal(torch.cat(parts), coupled.pair(x0, x1))


def test_no_cycle_of_exchanges_costs_less_in_a_large_group():
    """Which is a proof that no permutation does: Bellman and Ford's potentials settle in n rounds."""
    x0, x1 = normal(64, 5), normal(64, 5, seed=1)
    paired = x0[assignment(x0, x1)]
    c = torch.cdist(paired.double(), x1.double()).square()
    step, potential = c - c.diagonal()[None], torch.zeros(64, dtype=torch.float64)
    for _ in range(64):
        potential = torch.minimum(potential, (potential[:, None] + step).min(0)[0])
    assert bool((potential[:, None] + step - potential[None] > -1e-5).all())


def test_groups_of_one_and_equal_images():
    x = torch.zeros(5, 2)
    assert torch.equal(OptimalTransport(4).pair(normal(5, 2), x)[4], normal(5, 2)[4])
    assert sorted(assignment(x, x).tolist()) == list(range(5))
    with pytest.raises(ValueError, match="shapes differ"):
        assignment(x, x[:3])


@pytest.mark.parametrize("name", COUPLINGS)
def test_text_round_trips(name):
    assert coupling(name) == coupling(f"{name}(256)") == coupling(str(coupling(name)))
    assert coupling(f"{name}(32)") == COUPLINGS[name](32)
    for wrong in (1, 2.5, np.inf):
        with pytest.raises(UserError, match=f"{name}: size is {wrong}|must be a number"):
            coupling(f"{name}({wrong})")
