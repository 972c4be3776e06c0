"""Profiles put together: means over phases of one run, pools over groups of the data."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import reduce
from operator import add
from typing import Any

import torch
from torch import Tensor

from flowtempo.errors import UserError
from flowtempo.variance.estimate import Jackknifed
from flowtempo.variance.profile import Quantity, VarianceProfile

# What grows with the data in a pool; other counts are kept where all agree.
_ADDED = ("points", "copies", "queries", "images", "samples")


def average(profiles: Sequence[VarianceProfile], weights: Sequence[float] | None = None) -> VarianceProfile:
    """The mean of profiles that were measured on the same data, such as one model's at several steps.

    Their errors are correlated. Where all hold the same number of `without` rows of the same data, measured
    with one seed, the rows are averaged and the error follows from them. Otherwise the errors are added as if
    fully correlated, which bounds the error from above; `method` says so.

    Args:
        profiles: Of one quantity, bound and grid.
        weights: Of the profiles, in any unit; equal by default.

    Raises:
        UserError: If there are no profiles, they do not fit together, or a weight is negative or all are 0.
    """
    share = _shares(profiles, weights)
    curves = [jackknifed(profile) for profile in profiles] if same_blocks(profiles) else []
    if curves:
        # Noises that are not in the rows are the same in all profiles too.
        noise = _weighted(share, [curve.noise_variance.sqrt() for curve in curves]).square()
        total = _sum(curve * part for curve, part in zip(curves, share, strict=True))
        stderr, without = replace(total, noise_variance=noise).stderr, total.without
    else:
        stderr, without = _weighted(share, [profile.stderr for profile in profiles]), None
    alone = "" if curves or len(profiles) == 1 else ", errors added as if fully correlated"
    return _combined(
        profiles,
        share,
        f"mean of {len(profiles)} ({_methods(profiles)}){alone}",
        stderr,
        without,
        counts=_merged([profile.counts for profile in profiles], keep_lists=False),
        data=_merged([profile.data for profile in profiles]),
    )


def pool(
    profiles: Sequence[VarianceProfile],
    weights: Sequence[float],
    *,
    quantity: Quantity | None = None,
    data: dict[str, Any] | None = None,
) -> VarianceProfile:
    """The profile of data that is divided into groups, such as classes or sizes of images.

    The mean over images of a variance per dimension, so the dimension may differ between groups. Groups are
    independent. Where all have the same number of `without` rows, deleting block b of every group is a
    delete-a-group jackknife of the pooled curve, so the rows add up linearly (and keep the correlation from
    noises that groups measured with one seed share); otherwise the errors are added in quadrature.

    Args:
        profiles: Of one quantity, bound and grid; of disjoint data.
        weights: Share of the images in each group, in any unit.
        quantity: What the pooled curve is, if not the groups' own quantity: posterior variances of classes
            make a `class_posterior_variance` of the whole.
        data: Description of the whole data.

    Raises:
        UserError: If there are no profiles, they do not fit together, or a weight is negative or all are 0.
    """
    share = _shares(profiles, weights)
    curves = [jackknifed(profile) for profile in profiles] if _equal_rows(profiles) else []
    if curves:
        total = _sum(curve * part for curve, part in zip(curves, share, strict=True))
        stderr, without = total.stderr, total.without
    else:
        stderr, without = _weighted(share.square(), [p.stderr.square() for p in profiles]).sqrt(), None
    counts = _merged([profile.counts for profile in profiles], keep_lists=False)
    for key in _ADDED:
        if all(key in profile.counts for profile in profiles):
            counts[key] = sum(profile.counts[key] for profile in profiles)
    return _combined(
        profiles,
        share,
        f"{len(profiles)} groups pooled ({_methods(profiles)})",
        stderr,
        without,
        counts={**counts, "groups": len(profiles)},
        data=dict(data or {}),
        quantity=quantity,
    )


def jackknifed(profile: VarianceProfile) -> Jackknifed:
    """The curve with its rows; what the rows do not explain of its error is noise of its own."""
    assert profile.without is not None
    rows = Jackknifed(profile.mean, profile.without, torch.zeros_like(profile.mean))
    return replace(rows, noise_variance=(profile.stderr.square() - rows.stderr.square()).clamp(min=0))


def same_blocks(profiles: Sequence[VarianceProfile]) -> bool:
    """Whether all have as many rows, of the same data and seed; then the rows belong to the same blocks."""
    first = profiles[0]
    return _equal_rows(profiles) and all(
        each.data == first.data and each.counts.get("seed") == first.counts.get("seed") for each in profiles
    )


def _shares(profiles: Sequence[VarianceProfile], weights: Sequence[float] | None) -> Tensor:
    if not profiles:
        raise UserError("there are no profiles to combine")
    first = profiles[0]
    for other in profiles[1:]:
        for name in ("quantity", "bound"):
            if getattr(other, name) != getattr(first, name):
                found = f"{getattr(first, name)} and {getattr(other, name)}"
                raise UserError(f"profiles of one {name} are needed, not {found}")
        if not torch.equal(other.log_snr, first.log_snr):
            raise UserError("the profiles have different log-SNR grids: measure them on one")
    share = torch.ones(len(profiles), dtype=torch.float64)
    if weights is not None:
        share = torch.as_tensor(list(weights), dtype=torch.float64)
    if len(share) != len(profiles):
        raise UserError(f"{len(profiles)} profiles need as many weights, not {len(share)}")
    if not bool(torch.isfinite(share).all() and (share >= 0).all() and share.sum() > 0):
        raise UserError("weights must be finite and not negative, and one of them positive")
    return share / share.sum()


def _combined(
    profiles: Sequence[VarianceProfile],
    share: Tensor,
    method: str,
    stderr: Tensor,
    without: Tensor | None,
    *,
    counts: dict[str, int],
    data: dict[str, Any],
    quantity: Quantity | None = None,
) -> VarianceProfile:
    sizes = [profile.ess for profile in profiles if profile.ess is not None]
    own = _weighted(share, [1 / size for size in sizes]) if len(sizes) == len(profiles) else None
    return VarianceProfile(
        quantity=quantity or profiles[0].quantity,
        method=method,
        bound=profiles[0].bound,
        log_snr=profiles[0].log_snr,
        mean=_weighted(share, [profile.mean for profile in profiles]),
        stderr=stderr,
        dim=round(sum(float(part) * profile.dim for part, profile in zip(share, profiles, strict=True))),
        second_moment=sum(
            float(part) * each.second_moment for part, each in zip(share, profiles, strict=True)
        ),
        counts=counts,
        data=data,
        model=_merged([profile.model for profile in profiles]),
        # The weight of the noised point is what averages; its reciprocal is the effective sample size.
        ess=None if own is None else 1 / own,
        without=without,
    )


def _equal_rows(profiles: Sequence[VarianceProfile]) -> bool:
    counts = {0 if each.without is None else len(each.without) for each in profiles}
    return len(counts) == 1 and counts != {0}


def _weighted(share: Tensor, curves: Iterable[Tensor]) -> Tensor:
    return (share[:, None] * torch.stack(list(curves))).sum(0)


def _sum(curves: Iterable[Jackknifed]) -> Jackknifed:
    return reduce(add, curves)


def _methods(profiles: Sequence[VarianceProfile]) -> str:
    return ", ".join(dict.fromkeys(profile.method for profile in profiles))


def _merged(contents: Sequence[dict[str, Any]], *, keep_lists: bool = True) -> dict[str, Any]:
    """What all agree on, and a list of each one's value where they do not."""
    merged: dict[str, Any] = {}
    for key in dict.fromkeys(key for content in contents for key in content):
        values = [content.get(key) for content in contents]
        if all(value == values[0] for value in values):
            merged[key] = values[0]
        elif keep_lists:
            merged[key] = values
    return merged
