"""The work of a measurement in units that can be kept, resumed and shared between processes."""

from __future__ import annotations

import hashlib
import json
import time
import zipfile
from collections.abc import Callable
from os import PathLike, fspath
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flowtempo import __version__
from flowtempo.errors import UserError
from flowtempo.files import atomic_write
from flowtempo.variance.estimate import Part, Tally
from flowtempo.variance.factorised import in_sample_part
from flowtempo.variance.held_out import leave_one_out_part, own_noise
from flowtempo.variance.points import Points, draw_noise
from flowtempo.variance.share import Share

_SECONDS_BETWEEN_SAVES = 10.0
# Inner products with all points that are held at a time: 256 MiB.
_INNER_NUMBERS = 1 << 25


class Rounds:
    """In-sample and leave-one-out estimates that grow by rounds of queries.

    A unit is one block's new queries in one round. What a unit gives depends on the data and the settings
    alone, never on which process computed it or on whether it was read back from the state file.

    Args:
        points: The points.
        log_snr: (L,) float64.
        noises: Noises of a unit in the in-sample estimate.
        pairs: Noises of each query in the leave-one-out estimate.
        seed: Seed of the noises.
        target: What the caller stops at; kept with the state, since it decides what later rounds do.
        state: File to keep finished units in, or None.
        share: This process's part.

    Raises:
        UserError: If `state` exists and is not that of these points and settings.
    """

    def __init__(
        self,
        points: Points,
        log_snr: Tensor,
        *,
        noises: int,
        pairs: int,
        seed: int,
        target: float,
        state: str | PathLike[str] | None,
        share: Share,
    ) -> None:
        self.points, self.log_snr, self.share = points, log_snr, share
        self.noises, self.pairs, self.seed = noises, pairs, seed
        self.inside, self.outside = Tally(points, len(log_snr)), Tally(points, len(log_snr))
        self._round, self._total = 0, 0
        self._path = None if state is None else fspath(state)
        self._identity = _identity(points, log_snr, noises=noises, pairs=pairs, seed=seed, target=target)
        self._units: dict[str, np.ndarray] = {} if self._path is None else _load(self._path, self._identity)
        self._saved = time.monotonic()

    def run(
        self, total: int, lower: Tensor, upper: Tensor, progress: Callable[[float], None] | None = None
    ) -> None:
        """Do one round.

        Args:
            total: How many points are queries after it.
            lower: (L,) bool, the log-SNRs at which the in-sample estimate is wanted.
            upper: (L,) bool, the same for leave-one-out.
            progress: Called with the fraction of the round that is done.
        """
        points = self.points
        old = [len(points.queries(block, self._total)) for block in range(points.blocks)]
        queries = [points.queries(block, total)[old[block] :] for block in range(points.blocks)]
        names = [f"{self._round}.{block}" for block in range(points.blocks)]
        groups = [
            group
            for group in torch.split(torch.arange(points.blocks), self._at_once(queries))
            if any(names[block] not in self._units for block in group.tolist())
        ]
        made: set[int] = set()
        try:
            for done, group in enumerate(groups):
                if self.share.has(done):
                    self._compute(group.tolist(), queries, lower, upper)
                    made.update(group.tolist())
                    if self.share.world_size == 1:
                        self._save(_SECONDS_BETWEEN_SAVES)
                if progress is not None:
                    progress((done + 1) / len(groups))
        finally:
            if made and self.share.world_size == 1:
                self._save()
        if self.share.world_size > 1 and groups:
            self._exchange(torch.cat(groups).tolist(), made, queries, lower, upper)
        for block, query in enumerate(queries):
            if len(self._units[names[block]]) != self._size(query, lower, upper):
                raise UserError(f"{self._path}: is damaged: delete it")
            self._add(block, query, self._units[names[block]], lower, upper)
        self._round, self._total = self._round + 1, total

    def _at_once(self, queries: list[Tensor]) -> int:
        """How many blocks share a pass over the data, whose cost hardly depends on the number of vectors."""
        vectors = max(len(query) for query in queries) * (1 + self.pairs) + self.noises
        return max(1, min(self.points.blocks, _INNER_NUMBERS // (vectors * self.points.count)))

    def _compute(self, group: list[int], queries: list[Tensor], lower: Tensor, upper: Tensor) -> None:
        """Make the units of some blocks: in-sample value, deleted, own; leave-one-out value, deleted."""
        points = self.points
        query, sizes = (
            torch.cat([queries[block] for block in group]),
            [len(queries[block]) for block in group],
        )
        noise = own = torch.empty(0, points.dim, dtype=torch.float64)
        if bool(lower.any()):
            owners = [self._round * points.blocks + block for block in group]
            noise = draw_noise(points, self.seed, "tower", owners, self.noises)
        if bool(upper.any()):
            own = own_noise(points, query, self.pairs, self.seed)
        products = points.inner(torch.cat([points.rows(query).double(), noise, own]))
        x, shared, single = torch.split(products, [len(query), len(noise), len(own)])
        pieces: dict[int, list[Tensor]] = {block: [] for block in group}
        if bool(lower.any()):
            parts = zip(
                *(torch.split(rows, sizes) for rows in (query, x)), noise.chunk(len(group)), strict=True
            )
            for block, along, (some, inner, noises) in zip(
                group, shared.chunk(len(group)), parts, strict=True
            ):
                part = in_sample_part(points, some, noises, self.log_snr[lower], inner=inner, projected=along)
                assert part.own is not None
                pieces[block] += [part.value, part.deleted[block], part.own[block]]
        if bool(upper.any()):
            part = leave_one_out_part(
                points, query, self.pairs, self.log_snr[upper], seed=self.seed, inner=x, projected=single
            )
            for block, value in zip(group, torch.split(part.value, sizes), strict=True):
                pieces[block] += [value, part.deleted[block]]
        for block, some in pieces.items():
            self._units[f"{self._round}.{block}"] = torch.cat([piece.flatten() for piece in some]).numpy()

    def _size(self, query: Tensor, lower: Tensor, upper: Tensor) -> int:
        blocks, n = self.points.blocks, len(query)
        return (n + blocks + 1) * int(lower.sum()) + (n + blocks) * int(upper.sum())

    def _add(self, block: int, query: Tensor, numbers: np.ndarray, lower: Tensor, upper: Tensor) -> None:
        left = torch.from_numpy(numbers)
        for tally, active, has_own in ((self.inside, lower, True), (self.outside, upper, False)):
            grid, blocks = int(active.sum()), self.points.blocks
            if grid == 0:
                continue
            sizes = [len(query) * grid, blocks * grid, grid * has_own]
            value, row, weight = torch.split(left[: sum(sizes)], sizes)
            left = left[sum(sizes) :]
            deleted = torch.zeros(blocks, blocks, grid, dtype=torch.float64)
            deleted[block] = row.reshape(blocks, grid)
            own = torch.zeros(blocks, grid, dtype=torch.float64)
            if has_own:
                own[block] = weight
            tally.add(query, Part(value.reshape(-1, grid), deleted, own if has_own else None), active)

    def _exchange(
        self, blocks: list[int], made: set[int], queries: list[Tensor], lower: Tensor, upper: Tensor
    ) -> None:
        """Give every process all units: each was made by one, so that sums with zeros are exact."""
        names = [f"{self._round}.{block}" for block in blocks]
        sizes = [self._size(queries[block], lower, upper) for block in blocks]
        rows = [
            torch.from_numpy(self._units[name]) if block in made else torch.zeros(size).double()
            for block, name, size in zip(blocks, names, sizes, strict=True)
        ]
        summed = self.share.sum(torch.cat(rows)).cpu()
        for name, row in zip(names, torch.split(summed, sizes), strict=True):
            self._units[name] = row.numpy()
        self._save()

    def _save(self, wait: float = 0.0) -> None:
        if self._path is None or self.share.rank > 0 or time.monotonic() - self._saved < wait:
            return
        try:
            with atomic_write(self._path, "wb") as file:
                np.savez(file, allow_pickle=False, identity=np.array(self._identity), **self._units)
        except OSError as error:
            raise UserError(f"{self._path}: cannot be written ({error.strerror})") from error
        self._saved = time.monotonic()


def _identity(points: Points, log_snr: Tensor, **settings: Any) -> str:
    digest = hashlib.sha256(
        json.dumps([__version__, points.count, points.dim, str(points.x.dtype), settings]).encode()
    )
    for part in (points.norm, points.copy_of, log_snr):
        digest.update(part.contiguous().numpy().tobytes())
    return digest.hexdigest()


def _load(path: str, identity: str) -> dict[str, np.ndarray]:
    try:
        with np.load(path, allow_pickle=False) as file:
            units = {name: file[name] for name in file.files}
        found = str(units.pop("identity"))
    except FileNotFoundError:
        return {}
    except (IsADirectoryError, NotADirectoryError, PermissionError) as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from error
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise UserError(f"{path}: is no file of a measurement that was stopped: delete it") from error
    if found != identity:
        raise UserError(
            f"{path}: was left by a measurement of other data or with other settings: repeat that one to go"
            " on with it, or delete the file"
        )
    return units
