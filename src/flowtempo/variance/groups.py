"""Brackets of data in groups that a model can tell apart: by class, or by the size of the images."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from os import PathLike, fspath
from typing import Any

import torch
from torch import Tensor

from flowtempo.errors import UserError
from flowtempo.variance.bracket import DEFAULT_TARGET, Bracket, check_target, measure
from flowtempo.variance.combine import pool
from flowtempo.variance.points import MIN_POINTS, Source
from flowtempo.variance.profile import Quantity, VarianceProfile


def measure_groups(
    groups: Sequence[tuple[str, Tensor | Source, dict[str, Any] | None]],
    *,
    target_stderr: float = DEFAULT_TARGET,
    state: str | PathLike[str] | None = None,
    progress: Callable[[float], None] | None = None,
    queries: int | None = None,
    quantity: Quantity = "posterior_variance",
    **options: Any,
) -> Bracket:
    """Bracket each group alone and average over the data: the posterior variance when the group is known.

    Args:
        groups: Name, data and description of each group.
        target_stderr: For the average; one group alone needs less.
        state: As in `measure`; each group gets a file with its name after it.
        progress: As in `measure`.
        queries: Most points that serve as queries in each group; all of a group that has fewer.
        quantity: What the average is.
        options: What `measure` takes beside.

    Raises:
        UserError: As `measure` does, with the name of the group.
    """
    if len(groups) == 1 and quantity == "posterior_variance":
        ((_, x, data),) = groups
        options |= {"target_stderr": target_stderr, "state": state, "progress": progress, "queries": queries}
        return measure(x, data=data, **options)
    check_target(target_stderr)
    sizes = torch.tensor([float(len(x)) for _, x, _ in groups], dtype=torch.float64)
    shares = sizes / sizes.sum()
    alone = min(0.5, target_stderr / math.sqrt(float(shares.square().sum())))
    brackets, done = [], 0.0
    for (name, x, data), share in zip(groups, shares.tolist(), strict=True):
        try:
            brackets.append(
                measure(
                    x,
                    target_stderr=alone,
                    state=None if state is None else f"{fspath(state)}.{name}",
                    progress=None if progress is None else _part(progress, done, share),
                    queries=None if queries is None else min(queries, len(x)),
                    data=data,
                    **options,
                )
            )
        except UserError as error:
            raise UserError(f"{name}: {error}") from error
        done += share
    if progress is not None:
        progress(1.0)
    descriptions = [data for _, _, data in groups]
    alike = all(data == descriptions[0] for data in descriptions)
    whole = (
        descriptions[0] if alike else {"groups": dict(zip((g[0] for g in groups), descriptions, strict=True))}
    )
    return _pooled(brackets, shares.tolist(), quantity, whole)


def measure_by_class(
    x: Tensor | Source, labels: Tensor, *, data: dict[str, Any] | None = None, **options: Any
) -> Bracket:
    """Bracket the posterior variance given the label, for class-conditional models.

    Args:
        x: Data, (M, ...), or a source of it.
        labels: (M,) int64, 0 or more.
        data: Description of the data to keep in the profiles.
        options: What `measure_groups` takes beside.

    Returns:
        A bracket of profiles with the quantity `class_posterior_variance`.

    Raises:
        UserError: If a class has fewer than 8 points or does not vary; names the class.
    """
    counts = torch.bincount(labels).tolist()
    classes = [label for label, count in enumerate(counts) if count]
    few = [label for label in classes if counts[label] < MIN_POINTS]
    if few:
        raise UserError(
            f"class {few[0]} has {counts[few[0]]} points ({len(few)} of {len(classes)} have fewer than"
            f" {MIN_POINTS}): leave them out, or measure without classes"
        )
    groups = [(f"class {label}", _Part(x, (labels == label).nonzero().flatten()), data) for label in classes]
    return measure_groups(groups, quantity="class_posterior_variance", **options)


def _pooled(
    brackets: Sequence[Bracket], shares: Sequence[float], quantity: Quantity, data: dict[str, Any] | None
) -> Bracket:
    """The average of brackets of disjoint data."""

    def one(profiles: Sequence[VarianceProfile]) -> VarianceProfile:
        return pool(profiles, shares, quantity=quantity, data=data)

    return Bracket(
        one([bracket.lower for bracket in brackets]),
        one([bracket.upper for bracket in brackets]),
        tuple(map(one, zip(*(bracket.candidates for bracket in brackets), strict=True))),
    )


class _Part:
    """Some of the points of a source."""

    def __init__(self, x: Tensor | Source, index: Tensor) -> None:
        self.x, self.index = x, index
        self.shape = tuple(x.shape[1:]) if isinstance(x, Tensor) else tuple(x.shape)

    def __len__(self) -> int:
        return len(self.index)

    def batch(self, indices: Tensor) -> tuple[Tensor, None]:
        chosen = self.index[indices]
        return (self.x[chosen] if isinstance(self.x, Tensor) else self.x.batch(chosen)[0]), None


def _part(progress: Callable[[float], None], done: float, share: float) -> Callable[[float], None]:
    return lambda fraction: progress(min(1.0, done + share * fraction))
