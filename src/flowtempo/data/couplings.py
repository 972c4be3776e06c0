"""Which noise goes with which image: mini-batch optimal transport."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from flowtempo.errors import UserError
from flowtempo.forms import Forms


@dataclass(frozen=True)
class OptimalTransport:
    """Pair the noise and the images of a group so that the sum of squared distances is least.

    Straighter paths and a smaller variance of the velocity target (Pooladian et al., arXiv 2304.14772; Tong
    et al., arXiv 2302.00482). The noise is permuted and nothing else, so that whatever belongs to an image
    (label, time, index) stays with it and each noise is used once.

    Labels are not looked at: with a class-conditional model the noise of a class is then no longer standard
    normal, though generation starts from standard-normal noise for each class (Cheng & Schwing, arXiv
    2503.10636). See `OptimalTransportByLabel`.

    Paths that are coupled are no longer those that `flowtempo measure` and weightings by SNR speak of, where
    noise and data are independent: the posterior of an image given a noisy one is another.

    Attributes:
        size: Images of a group. The global batch is cut into groups of this size, so that the pairing does
            not depend on the number of processes and its cost, about size^3, stays bounded.

    Raises:
        UserError: If `size` is not a whole number above 1.
    """

    name: ClassVar[str] = "optimal_transport"
    by_label: ClassVar[bool] = False

    size: int = 256

    def __post_init__(self) -> None:
        if not 2 <= self.size < 2**31 or self.size != int(self.size):
            raise UserError(f"{self.name}: size is {self.size}: it must be a whole number above 1")
        object.__setattr__(self, "size", int(self.size))

    def __str__(self) -> str:
        return f"{self.name}({self.size})"

    def span(self, local: range, batch_size: int) -> range:
        """The positions of the global batch that must be known to pair those in `local`."""
        start = local.start // self.size * self.size
        return range(start, min(batch_size, -(-local.stop // self.size) * self.size))

    def pair(self, x0: Tensor, x1: Tensor, y: Tensor | None = None) -> Tensor:
        """The noise in the order in which it goes with the images.

        Args:
            x0: Noise of whole groups, (n, ...), from the first position of one on.
            x1: Images, the shape of `x0`.
            y: (n,) labels, which only `OptimalTransportByLabel` looks at.

        Returns:
            `x0` with its rows permuted.

        Raises:
            ValueError: If the shapes differ, or labels are needed and missing.
        """
        if self.by_label and y is None:
            raise ValueError(f"{self.name} needs labels")
        order = torch.arange(len(x0))
        for group in order.split(self.size):
            labels = y[group].cpu() if self.by_label and y is not None else torch.zeros(len(group))
            for label in labels.unique():
                rows = group[labels == label]
                order[rows] = rows[assignment(x0[rows], x1[rows])]
        return x0[order.to(x0.device)]


@dataclass(frozen=True)
class OptimalTransportByLabel(OptimalTransport):
    """Pair noise and images within each label of a group, so that the noise of each class stays normal.

    Paths are less straight than without regard to the labels, since a group holds few images of each.
    """

    name: ClassVar[str] = "optimal_transport_by_label"
    by_label: ClassVar[bool] = True


COUPLINGS: dict[str, Callable[..., OptimalTransport]] = {
    "optimal_transport": OptimalTransport,
    "optimal_transport_by_label": OptimalTransportByLabel,
}
"""Names that `coupling` knows and what they build."""

FORMS: Forms[OptimalTransport] = Forms("coupling", COUPLINGS, "'optimal_transport(256)'")


def coupling(text: str) -> OptimalTransport:
    """Read a coupling from its text form.

    Raises:
        UserError: If the text has another form, the name is unknown, or an argument is wrong.
    """
    return FORMS.parse(text)


def assignment(x0: Tensor, x1: Tensor) -> Tensor:
    """The rows of `x0` that go with those of `x1` at the least sum of squared distances.

    Args:
        x0: (n, ...).
        x1: The shape of `x0`.

    Returns:
        (n,) int64, a permutation, on the CPU. Exact but for the rounding of inner products, which are in
        the dtype of the batch, float32 at least.

    Raises:
        ValueError: If the shapes differ.
    """
    # SciPy's is exact (shortest augmenting paths) and takes milliseconds; it is slow to import.
    from scipy.optimize import linear_sum_assignment

    if x0.shape != x1.shape:
        raise ValueError(f"shapes differ: {tuple(x0.shape)} and {tuple(x1.shape)}")
    if len(x0) < 2:
        return torch.arange(len(x0))
    # sum |x0 - x1|^2 = const - 2 sum <x0, x1>: the squares are the same for every pairing
    wide = torch.promote_types(torch.promote_types(x0.dtype, x1.dtype), torch.float32)
    gain = x1.detach().flatten(1).to(wide) @ x0.detach().flatten(1).to(wide).T
    _, columns = linear_sum_assignment(gain.cpu().numpy(), maximize=True)
    return torch.from_numpy(columns)
