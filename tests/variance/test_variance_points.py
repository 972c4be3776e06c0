"""The order and the blocks of the data."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flowtempo.errors import UserError
from flowtempo.variance.points import prepare


@settings(max_examples=40, deadline=None)
@given(st.integers(8, 700), st.integers(1, 30), st.integers(0, 2**32))
def test_blocks_partition_and_queries_spread(count, groups, seed):
    kinds = torch.randint(0, groups, (count,), generator=torch.Generator().manual_seed(seed))
    kinds[0] = groups
    points = prepare(kinds[:, None].float(), seed=seed % 99)
    assert points.blocks % 2 == 0
    assert sorted((points.x[:, 0].round(decimals=3)).tolist()) == sorted(
        (kinds - kinds.float().mean()).round(decimals=3).tolist()
    ) or torch.allclose(points.x[:, 0].sort().values, (kinds - kinds.float().mean()).sort().values, atol=1e-4)
    assert points.starts[0] == 0
    assert points.starts[-1] == count
    sizes = points.block_of.bincount()
    assert int(sizes.max() - sizes.min()) <= 1
    # Equal points are neighbours, so only the two ends of a block can share a kind with another block.
    changes = int((points.copy_of.diff() != 0).sum())
    assert changes == len(kinds.unique()) - 1
    assert points.copies == count - len(kinds.unique())
    total = max(points.blocks, count // 3)
    queries = [points.queries(block, total) for block in range(points.blocks)]
    assert sum(map(len, queries)) == total
    assert min(map(len, queries)) >= 1
    for block, some in enumerate(queries):
        assert (points.block_of[some] == block).all()


def test_moments_are_those_of_the_data():
    x = torch.randn(50, 3, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + 5
    points = prepare(x, seed=0)
    flat = x.flatten(1)
    assert points.second_moment == pytest.approx(float(flat.square().mean()))
    torch.testing.assert_close(points.x.mean(0), torch.zeros(6, dtype=torch.float64), atol=1e-14, rtol=0)
    torch.testing.assert_close(points.norm, points.x.square().sum(1))
    query = torch.tensor([3, 40])
    inner = points.inner(points.x[query])
    torch.testing.assert_close(inner, points.x[query] @ points.x.T)
    expected = torch.cdist(points.x[query], points.x).square()
    torch.testing.assert_close(points.distances(query, inner), expected)
    torch.testing.assert_close(prepare(x, seed=0, centre=False).offset, -flat.mean(0))


def test_signed_zeros_are_equal():
    x = torch.tensor([[0.0], [-0.0], [1.0]]).repeat(4, 1)
    assert prepare(x, seed=0).copies == 10


def test_data_that_cannot_be_squared_is_refused():
    x = torch.randn(20, 2, dtype=torch.float64) * 1e200
    with pytest.raises(UserError, match="so large"):
        prepare(x, seed=0)


def test_float32_data_near_its_largest_number_is_refused():
    x = torch.full((20, 2), 3e38)
    x[::2] *= -1
    with pytest.raises(UserError, match=r"so large \(max 3e\+38\) that squares overflow; rescale"):
        prepare(x, seed=0)
