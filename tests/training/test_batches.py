import numpy as np
import pytest
import torch

from flowtempo.data import ArrayData
from flowtempo.densities import Uniform
from flowtempo.errors import UserError
from flowtempo.timesteps import Proposal
from flowtempo.training.batches import Batches


def numbered(count, labels=True):
    """Image i holds the value i everywhere and has label i % 3."""
    images = np.arange(count, dtype=np.float32)[:, None, None, None] * np.ones((1, 1, 2, 2), np.float32)
    return ArrayData(images, np.arange(count) % 3 if labels else None, 3 if labels else 0)


def make(data, **settings):
    return Batches(data, Proposal(Uniform(), None, "stratified"), **settings)


def fields(batch):
    return [batch.x1, batch.x0, batch.y, batch.t, batch.weight]


def test_each_image_once_per_epoch_in_a_new_order_and_with_its_label():
    batches = make(numbered(10), batch_size=4)
    drawn = [batches.at(step) for step in range(5)]  # two epochs; the third batch spans both
    order = torch.cat([b.x1[:, 0, 0, 0] for b in drawn]).long()
    labels = torch.cat([b.y for b in drawn])
    assert order[:10].sort().values.tolist() == order[10:].sort().values.tolist() == list(range(10))
    assert order[:10].tolist() != order[10:].tolist()
    assert torch.equal(labels, order % 3)


def test_batch_larger_than_the_data():
    order = make(numbered(3), batch_size=7).at(0).x1[:, 0, 0, 0].long().tolist()
    assert sorted(order[:3]) == sorted(order[3:6]) == [0, 1, 2]


@pytest.mark.parametrize(("world", "accumulate"), [(2, 1), (1, 4), (2, 2), (4, 2)])
def test_shares_and_parts_cut_the_same_global_batch(world, accumulate):
    data = numbered(11)
    whole = make(data, batch_size=8, seed=3, label_dropout=0.4).at(5)
    settings = {"batch_size": 8, "accumulate": accumulate, "seed": 3, "label_dropout": 0.4}
    parts = [
        part
        for rank in range(world)
        for part in make(data, rank=rank, world_size=world, **settings).at(5).split(accumulate)
    ]
    assert all(len(part) == 8 // world // accumulate for part in parts)
    for one, other in zip(fields(whole), zip(*map(fields, parts), strict=True), strict=True):
        assert torch.equal(one, torch.cat(other))
    # Stratified over the global batch: one time in each eighth.
    assert sorted((whole.t * 8).long().tolist()) == list(range(8))


def test_draws_depend_on_step_and_seed_and_not_on_history():
    batches = make(numbered(16), batch_size=8)
    first, again, later = batches.at(0), batches.at(0), batches.at(2)
    other = make(numbered(16), batch_size=8, seed=1).at(0)
    for a, b in zip(fields(first), fields(again), strict=True):
        assert torch.equal(a, b)
    for different in (later, other):
        assert not torch.equal(first.x1, different.x1)
        assert not torch.equal(first.x0, different.x0)
        assert not torch.equal(first.t, different.t)
    assert len(first.x0.flatten().unique()) == first.x0.numel()


def test_label_dropout_is_the_asked_share_and_spares_the_rest():
    data = numbered(999)
    dropped = make(data, batch_size=999, label_dropout=0.3).at(0)
    plain = make(data, batch_size=999).at(0)
    null = dropped.y == 3
    assert float(null.float().mean()) == pytest.approx(0.3, abs=0.05)
    assert torch.equal(dropped.y[~null], plain.y[~null])
    assert torch.equal(dropped.x1, plain.x1)
    assert (make(data, batch_size=9, label_dropout=1.0).at(0).y == 3).all()


def test_unlabelled_data():
    batch = make(numbered(8, labels=False), batch_size=4).at(0)
    assert batch.y is None
    assert all(part.y is None for part in batch.split(2))


def test_iterating_is_the_same_as_asking():
    batches = make(numbered(10), batch_size=4)
    seen = list(batches.iterate(3, 7))
    assert len(seen) == 4
    for step, batch in enumerate(seen, start=3):
        for a, b in zip(fields(batch), fields(batches.at(step)), strict=True):
            assert torch.equal(a, b)
    assert list(batches.iterate(7, 7)) == []


def test_unequal_shares():
    with pytest.raises(UserError, match=r"batch_size 10 .* 2 process\(es\) x accumulate 2: .*multiple of 4"):
        make(numbered(4), batch_size=10, accumulate=2, world_size=2)
