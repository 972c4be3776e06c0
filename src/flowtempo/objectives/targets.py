"""What the data is replaced by in the target: its expectation over several images.

A target is a linear function of x1 and x0, so that expected data and noise given x_t, which mix to the same
x_t, are the target of every prediction under every interpolant.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from flowtempo import randomness
from flowtempo.errors import UserError
from flowtempo.forms import Forms
from flowtempo.interpolants import Interpolant, per_sample

__all__ = ["FORMS", "TARGETS", "Banks", "MultiSample", "multi_sample", "posterior_means"]

Read = Callable[[Tensor], tuple[Tensor, Tensor | None]]


@dataclass(frozen=True)
class MultiSample:
    """The expectation of the target over a set of images of the sample's class, of which its own is one.

    Self-normalised targets: stable targets (Xu et al., arXiv 2302.00670) and StableVM. x_t stays what it is
    without. Any image of the set could as well have been the sample's, so that the expectation given x_t and
    the set averages to the expectation given x_t: the mean of the ordinary target at every x_t, with less
    variance. What is left of it falls as 1 / size where the noise hides which image it is; where the noise is
    weak there is nothing to gain.

    The samples of a label share a set, and what is left of the variance is common to them: a batch gains as
    far as the set is larger than the label's part of the batch.

    With the direction loss, which is not linear in the target, the objective becomes another one.

    Attributes:
        size: Images of a set besides the sample's; a class that has no more is taken whole, which gives its
            exact expectation.
        below: The log-SNR below which it is used; above, the target is the ordinary one. 0 is t = 0.5 on the
            linear path, as in StableVM.
        period: Optimizer steps for which the images of a class stay the same. Reading them costs up to `size`
            images for each label in the batch; images that stay are an error that does not average out over
            these steps.

    Raises:
        UserError: If a number is out of range.
    """

    name: ClassVar[str] = "multi_sample"

    size: int = 256
    below: float = 0.0
    period: int = 1

    def __post_init__(self) -> None:
        # A set of one image is the sample alone.
        for key, least in (("size", 2), ("period", 1)):
            value = getattr(self, key)
            if not least <= value < 2**31 or value != int(value):
                raise UserError(
                    f"{self.name}: {key} is {value}: it must be a whole number and at least {least}"
                )
            object.__setattr__(self, key, int(value))
        if not math.isfinite(self.below):
            raise UserError(f"{self.name}: below is {self.below}: it must be a finite log-SNR")

    def __str__(self) -> str:
        return f"{self.name}({self.size}, {self.below!r}, {self.period})"


TARGETS: dict[str, Callable[..., MultiSample]] = {"multi_sample": MultiSample}
"""Names that `multi_sample` knows and what they build; without one the target is that of one sample."""

FORMS: Forms[MultiSample] = Forms("target", TARGETS, "'multi_sample(256, 0)'")


def multi_sample(text: str) -> MultiSample:
    """Read a target from its text form.

    Raises:
        UserError: If the text has another form, the name is unknown, or an argument is wrong.
    """
    return FORMS.parse(text)


class Banks:
    """The images of each class that a multi-sample target is averaged over, as a function of the step.

    A bank is a random choice of images, without replacement, of one class, or of all images for those whose
    label is dropped or that have none. It depends on (seed, step // period, label) alone: nothing has to be
    saved, and it is the same on every process.

    Args:
        settings: The target.
        read: Images at (n,) int64 indices, (n, ...), and anything beside them.
        count: Number of images N.
        labels: (N,) labels in [0, num_classes), or None.
        num_classes: The label that stands for none.
        seed: Seed of the choice.
    """

    def __init__(
        self,
        settings: MultiSample,
        read: Read,
        *,
        count: int,
        labels: np.ndarray | Tensor | None = None,
        num_classes: int = 0,
        seed: int = 0,
    ) -> None:
        self.settings = settings
        self.seed = seed
        self._read = read
        self._count = count
        self._null = num_classes
        classes = torch.zeros(0, dtype=torch.int64) if labels is None else torch.as_tensor(labels)
        self._order = classes.argsort(stable=True)
        self._ends = torch.bincount(classes, minlength=num_classes).cumsum(0)
        self._held: dict[int, tuple[int | None, Tensor, Tensor]] = {}

    def indices(self, label: int, step: int) -> Tensor:
        """The rows of a bank, (n,) int64, all different; `num_classes` stands for all images."""
        members = None if label == self._null else self._members(label)
        count = self._count if members is None else len(members)
        if count <= self.settings.size:
            return torch.arange(count) if members is None else members
        random = randomness.generator(self.seed, "bank", step // self.settings.period, label)
        chosen = torch.from_numpy(random.choice(count, self.settings.size, replace=False))
        return chosen if members is None else members[chosen]

    def expected(
        self,
        x1: Tensor,
        x0: Tensor,
        t: Tensor,
        y: Tensor | None,
        indices: Tensor | Sequence[int],
        *,
        step: int,
        interpolant: Interpolant,
    ) -> tuple[Tensor, Tensor]:
        """Put expected data and noise in the place of drawn ones; they mix to the same x_t.

        Times and labels are looked at, which waits for a GPU if they are there: call it where batches are
        made.

        Args:
            x1: Data, (B, ...).
            x0: Noise, independent of the data, the shape of `x1`.
            t: Times, (B,).
            y: (B,) labels, dropped ones included; None without.
            indices: (B,) the row of each image among all.
            step: 0-based optimizer step.
            interpolant: The path.

        Returns:
            x1 and x0, changed where log-SNR is below the bound.

        Raises:
            ValueError: If the shapes do not fit.
        """
        low = (interpolant.log_snr(t) < self.settings.below).cpu()
        label = torch.full(t.shape, self._null) if y is None else y.cpu()
        own = torch.as_tensor(indices).cpu()
        x1, x0 = x1.clone(), x0.clone()
        for value in sorted(set(label[low].tolist())):
            rows = torch.nonzero(low & (label == value))[:, 0]
            members, bank = self._bank(value, step)
            here = rows.to(x1.device)
            x1[here], x0[here] = posterior_means(
                x1[here],
                x0[here],
                t[here.to(t.device)],
                bank.to(x1.device),
                interpolant,
                own=(members == own[rows, None]).to(x1.device),
            )
        return x1, x0

    def _members(self, label: int) -> Tensor:
        first = int(self._ends[label - 1]) if label else 0
        return self._order[first : int(self._ends[label])]

    def _bank(self, label: int, step: int) -> tuple[Tensor, Tensor]:
        count = self._count if label == self._null else len(self._members(label))
        # A class that is taken whole never changes.
        period = None if count <= self.settings.size else step // self.settings.period
        held = self._held.get(label)
        if held is None or held[0] != period:
            rows = self.indices(label, step)
            held = self._held[label] = period, rows, self._read(rows)[0]
        return held[1], held[2]


@torch.no_grad()
def posterior_means(
    x1: Tensor, x0: Tensor, t: Tensor, bank: Tensor, interpolant: Interpolant, *, own: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Data and noise that are expected given x_t = alpha x1 + sigma x0, if the data is one of a set.

    The weight of x_j is the softmax of -|x_t - alpha x_j|^2 / (2 sigma^2), in float64 from inner products in
    the dtype of the batch. It takes 4 B n d operations.

    Args:
        x1: Data, (B, ...), always one of the set.
        x0: Noise, the shape of `x1`.
        t: Times, (B,).
        bank: The other images, (n, ...).
        interpolant: The path.
        own: (B, n) bool, where the bank's image is the sample's own, which then counts once: a set of
            different images, any of which could as well have been the sample's. None is for a bank of
            independent draws from the distribution of the sample's.

    Returns:
        E[x1 | x_t] and E[x0 | x_t], (B, ...), float32 at least. alpha and sigma mix them to the same x_t.

    Raises:
        ValueError: If the shapes do not fit.
    """
    if bank.shape[1:] != x1.shape[1:] or x0.shape != x1.shape:
        raise ValueError(f"shapes do not fit: {tuple(x1.shape)}, {tuple(x0.shape)}, {tuple(bank.shape)}")
    if own is not None and own.shape != (len(x1), len(bank)):
        raise ValueError(f"own must have shape ({len(x1)}, {len(bank)}), got {tuple(own.shape)}")
    dtype = torch.promote_types(x1.dtype, torch.float32)
    sigma = interpolant.sigma(t.double())
    # Without noise the posterior is the sample itself, which is put back below.
    ratio = torch.where(sigma > 0, interpolant.alpha(t.double()) / sigma, 0)
    with torch.autocast(x1.device.type, enabled=False):
        # About the bank's mean: the smaller the terms of |x_t - alpha x_j|^2, the less they cancel.
        centre = bank.to(dtype).mean(0)
        others = (bank.to(dtype) - centre).flatten(1)
        mine = (x1.to(dtype) - centre).flatten(1)
        noisy = per_sample(ratio, mine) * mine + x0.to(dtype).flatten(1)  # x_t / sigma
        inner = torch.cat([(noisy * mine).sum(1, keepdim=True), noisy @ others.T], 1).double()
        square = torch.cat([_square(mine)[:, None], _square(others).expand(len(mine), -1)], 1)
        logit = ratio[:, None] * (inner - ratio[:, None] * square / 2)
        if own is not None:
            logit[:, 1:].masked_fill_(own, -math.inf)
        weight = torch.softmax(logit, 1).to(dtype)
        # As a difference, which is 0 where the sample's own weight is 1.
        moved = weight[:, 1:] @ others - weight[:, 1:].sum(1, keepdim=True) * mine
    moved = torch.where(sigma[:, None] > 0, moved, 0).reshape(x1.shape)
    return x1 + moved, x0 - per_sample(ratio, moved) * moved


def _square(x: Tensor) -> Tensor:
    """|x|^2 of each row, (n,) float64."""
    length: Tensor = torch.linalg.vector_norm(x, dim=1, dtype=torch.float64)
    return length.square()
