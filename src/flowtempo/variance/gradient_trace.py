"""Watching a forward pass for the uses of parameters.

Every torch function that is handed a parameter is seen, whatever module calls it. What is known of it
becomes a `Use`; a parameter that went through a function not in `FUNCTIONS` is left to explicit gradients.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from flowtempo.variance.gradient_functions import FUNCTIONS, Claim, Rows
from flowtempo.variance.gradient_uses import Use, squared_norms


class Trace(TorchFunctionMode):
    """The uses of some parameters, recorded while it is entered, and squared norms during a backward pass.

    Args:
        parameters: What to watch, by name.
        count: B, the samples in the batch, along dimension 0.

    Attributes:
        squares: Squared norms of the per-sample gradients by name, (B,) float64, once a backward pass is over
            and `finish` was called.
        unknown: Parameters with uses that only explicit gradients can follow.
        rounded: Whether gradients were in half precision.
    """

    def __init__(self, parameters: Mapping[str, Tensor], count: int) -> None:
        super().__init__()
        self.squares: dict[str, Tensor] = {}
        self.unknown: set[str] = set()
        self.rounded = False
        self._names = {id(parameter): name for name, parameter in parameters.items()}
        self._count = count
        self._uses: dict[tuple[str, Rows], list[Use]] = {}

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call `func`; see the class."""
        kwargs = kwargs or {}
        found = list(self._find((args, kwargs)))
        if not found or not torch.is_grad_enabled():
            return func(*args, **kwargs)
        claimed: Counter[str] = Counter()
        handler = FUNCTIONS.get(func)
        if handler is None:
            out = func(*args, **kwargs)
        else:
            out, watched = handler(self._count, *args, **kwargs)
            for tensor, claims in watched:
                claimed.update(self._record(tensor, claims))
        if any(result.requires_grad and id(result) not in self._names for result in _tensors(out)):
            # A parameter may be claimed in several parts, but not be found twice and claimed once.
            self.unknown.update(name for name in found if claimed[name] < found.count(name))
        return out

    def finish(self) -> None:
        """Count what no gradient reached as zero, and settle parameters that were used in several ways."""
        for key, uses in list(self._uses.items()):
            reached = [use for use in uses if use.g is not None]
            if reached:
                self._settle(key, reached)
        parts: dict[str, list[Rows]] = {}
        for name, rows in self._uses:
            parts.setdefault(name, []).append(rows)
        self.unknown.update(name for name, each in parts.items() if not _disjoint(each))

    def _find(self, values: Iterable[Any]) -> Iterator[str]:
        """The parameters among some arguments; called for every function of the pass, so it is plain."""
        for value in values:
            if id(value) in self._names:
                yield self._names[id(value)]
            elif type(value) in (tuple, list):
                yield from self._find(value)
            elif type(value) is dict:
                yield from self._find(value.values())

    def _record(self, out: Tensor, claims: list[Claim]) -> list[str]:
        mine = [(self._names[id(p)], use, rows) for p, use, rows in claims if id(p) in self._names]
        if not mine or not out.requires_grad:
            return [name for name, _, _ in mine]
        for name, use, rows in mine:
            self._uses.setdefault((name, rows), []).append(use)

        def reached(g: Tensor) -> None:
            self.rounded |= g.dtype in (torch.bfloat16, torch.float16)
            for name, use, rows in mine:
                use.g = g.detach()
                uses = self._uses[name, rows]
                if all(each.g is not None for each in uses):
                    self._settle((name, rows), uses)

        out.register_hook(reached)  # type: ignore[no-untyped-call]
        return [name for name, _, _ in mine]

    def _settle(self, key: tuple[str, Rows], uses: list[Use]) -> None:
        """Turn uses into squared norms and let go of their tensors."""
        self._uses[key] = []
        if key[0] not in self.unknown:
            squares = squared_norms(uses, self._count)
            self.squares[key[0]] = self.squares[key[0]] + squares if key[0] in self.squares else squares


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _tensors(item)


def _disjoint(parts: list[Rows]) -> bool:
    ranges = sorted(part for part in parts if part is not None)
    if len(ranges) < len(parts):
        return len(parts) == 1
    return all(first[1] <= second[0] for first, second in pairwise(ranges))
