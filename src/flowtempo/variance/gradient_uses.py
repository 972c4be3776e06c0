"""Per-sample gradients of a parameter from one of its uses in the forward pass, and their squared norms.

A use keeps what the backward pass needs beside the gradient g of its output. A parameter that is used more
than once has the sum of its uses' gradients, and the sum is squared.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

# What is formed at a time: few enough samples to stay in a CPU's cache, enough to fill a GPU.
_BLOCK_BYTES = {"cpu": 1 << 23}
_DEVICE_BLOCK_BYTES = 1 << 28


class Use(ABC):
    """One use of a parameter by a batch of B samples.

    Attributes:
        g: Gradient of the summed losses by the use's output, (B, ...); None until it is known.
    """

    g: Tensor | None = None

    @abstractmethod
    def gradient(self, part: slice) -> Tensor:
        """Gradients of some samples' losses by the parameter, (b, n), n numbers in float32 or wider."""

    def _known(self, part: slice) -> Tensor:
        assert self.g is not None
        return wide(self.g[part])


@dataclass(eq=False)
class Direct(Use):
    """A use whose per-sample gradients are small: biases, gains, added tables.

    Attributes:
        reduce: Maps the output gradients of some samples, (b, ...), and which they are, to (b, n).
    """

    reduce: Callable[[Tensor, slice], Tensor]

    def gradient(self, part: slice) -> Tensor:
        """See `Use`."""
        return self.reduce(self._known(part), part)


@dataclass(eq=False)
class Outer(Use):
    """A use whose gradient is a sum over P positions of outer products, in each of G groups.

    With left (b, G, P, l) and right (b, G, P, r), one from the input and one from the output gradient, it is
    left^T right, (b, G, l, r). Its squared norm is also the sum of all entries of (left left^T) * (right
    right^T), products of P x P matrices ("ghost norm": Goodfellow, arXiv 1510.01799; Li et al., arXiv
    2110.05679), for about 2 P^2 (l + r) operations instead of 2 P l r.

    Attributes:
        x: The input, (B, ...).
        of_x: Maps some samples' input to (b, G, P, l or r).
        of_g: The same for the output gradient.
        x_is_left: Whether the input gives `left`.
        size: (G, P, l, r).
    """

    x: Tensor
    of_x: Callable[[Tensor], Tensor]
    of_g: Callable[[Tensor], Tensor]
    x_is_left: bool
    size: tuple[int, int, int, int]

    def factors(self, part: slice) -> tuple[Tensor, Tensor]:
        """Left and right of some samples."""
        ours, theirs = self.of_x(wide(self.x[part])), self.of_g(self._known(part))
        return (ours, theirs) if self.x_is_left else (theirs, ours)

    def gradient(self, part: slice) -> Tensor:
        """See `Use`."""
        left, right = self.factors(part)
        return (left.mT @ right).flatten(1)


@dataclass(eq=False)
class Lookup(Use):
    """Rows of a table taken by index.

    Attributes:
        index: (B, ...) int64, the rows that were taken.
        padding: The row that gets no gradient, or None.
        rows: Rows of the table.
    """

    index: Tensor
    padding: int | None
    rows: int
    width: int

    def _taken(self, part: slice) -> tuple[Tensor, Tensor]:
        g = self._known(part)
        index = self.index[part].reshape(len(g), -1)
        g = g.reshape(len(g), index.shape[1], self.width)
        return index, g if self.padding is None else g * (index != self.padding)[..., None]

    def gradient(self, part: slice) -> Tensor:
        """See `Use`."""
        index, g = self._taken(part)
        table = g.new_zeros(len(g), self.rows, self.width)
        return table.scatter_add_(1, index[..., None].expand_as(g), g).flatten(1)

    def squares(self, part: slice) -> Tensor:
        """Squared norms without the table, (b,): rows that were taken twice are summed before squaring."""
        index, g = self._taken(part)
        same = index[:, :, None] == index[:, None, :]
        return ((g @ g.mT) * same).flatten(1).sum(1)


def squared_norms(uses: Sequence[Use], count: int) -> Tensor:
    """Squared norms of the per-sample gradients of one parameter, (count,) float64.

    Args:
        uses: All its uses, with known `g`.
        count: B.
    """
    first = uses[0]
    if all(isinstance(use, Outer) for use in uses):
        return _outer([use for use in uses if isinstance(use, Outer)], count)
    if isinstance(first, Lookup) and len(uses) == 1:
        positions = first.index[:1].numel()
        return _in_blocks(first.squares, count, positions * (positions * 2 + first.width), first)
    size = sum(_numbers(use) for use in uses)
    return _in_blocks(lambda part: _squares(_total(uses, part)), count, size, first)


def _outer(uses: Sequence[Outer], count: int) -> Tensor:
    groups, _, left, right = uses[0].size
    positions = sum(use.size[1] for use in uses)
    factors = groups * positions * (left + right)

    def joined(part: slice) -> tuple[Tensor, Tensor]:
        pairs = [use.factors(part) for use in uses]
        if len(pairs) == 1:
            return pairs[0]
        return torch.cat([pair[0] for pair in pairs], 2), torch.cat([pair[1] for pair in pairs], 2)

    def single(part: slice) -> Tensor:
        a, b = joined(part)
        return (a.square().sum(-1) * b.square().sum(-1)).flatten(1).sum(1)

    def ghost(part: slice) -> Tensor:
        a, b = joined(part)
        return ((a @ a.mT) * (b @ b.mT)).flatten(1).sum(1).clamp_(min=0)

    def formed(part: slice) -> Tensor:
        a, b = joined(part)
        return _squares((a.mT @ b).flatten(1))

    if positions == 1:
        return _in_blocks(single, count, factors, uses[0])
    if positions * (left + right) < left * right:
        return _in_blocks(ghost, count, factors + 2 * groups * positions**2, uses[0])
    return _in_blocks(formed, count, factors + groups * left * right, uses[0])


def _total(uses: Sequence[Use], part: slice) -> Tensor:
    total = uses[0].gradient(part)
    for use in uses[1:]:
        total = total + use.gradient(part)
    return total


def _numbers(use: Use) -> int:
    assert use.g is not None
    if isinstance(use, Outer):
        groups, positions, left, right = use.size
        return groups * (positions * (left + right) + left * right)
    if isinstance(use, Lookup):
        return use.rows * use.width
    return math.prod(use.g.shape[1:])


def _in_blocks(squares: Callable[[slice], Tensor], count: int, numbers: int, use: Use) -> Tensor:
    """Evaluate over blocks of samples that hold about `numbers` numbers each."""
    assert use.g is not None
    limit = _BLOCK_BYTES.get(use.g.device.type, _DEVICE_BLOCK_BYTES)
    step = max(1, limit // (max(use.g.element_size(), 4) * numbers))
    return torch.cat([squares(slice(i, i + step)).double() for i in range(0, count, step)])


def _squares(rows: Tensor) -> Tensor:
    norm: Tensor = torch.linalg.vector_norm(rows, dim=1)
    return norm.square()


def wide(x: Tensor) -> Tensor:
    """Half precision widened to float32; the rest as it is."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
