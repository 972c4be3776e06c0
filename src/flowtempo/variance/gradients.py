"""Per-sample gradients of any model: squared norms and sum, from one forward and one backward pass."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.modules.batchnorm import _BatchNorm

from flowtempo.errors import UserError
from flowtempo.variance.gradient_trace import Trace

Batch = tuple[Tensor | None, ...]
"""What the loss takes: tensors with samples along dimension 0, and Nones."""

Loss = Callable[[nn.Module, Batch], Tensor]
"""Runs the model on a batch: losses (B,), or (B, k) of which the first column is the loss."""

# Per-sample gradients that are formed at a time where nothing cheaper is known.
_CHUNK_BYTES = 1 << 28
# Of one sample's squared norms against its explicit gradient: rounding, and what rounding alone may leave.
_TOLERANCE = {torch.float64: (1e-6, 1e-12), torch.float32: (1e-3, 1e-6)}
_HALF_TOLERANCE = (0.2, 1e-2)


@dataclass(frozen=True, eq=False)
class Gradients:
    """Gradients of the losses of B samples by n parameters.

    Attributes:
        values: What the loss returned, (B,) or (B, k), detached.
        squares: Squared norm of each sample's gradient by each parameter, (B, n) float64, in the order of
            `SampleGradients.parameters`.
        total: Gradient of the sum of the losses by each parameter, by name.
    """

    values: Tensor
    squares: Tensor
    total: dict[str, Tensor]


class SampleGradients:
    """Squared norms of per-sample gradients without forming the gradients where that can be avoided.

    The forward pass is watched for the functions that parameters go through (linear maps and matrix
    products, convolutions, embeddings, normalisations, attention projections, added and multiplied
    parameters): their inputs and output gradients give the norms (`gradient_uses`). Parameters that go
    through anything else get explicit per-sample gradients (torch.func), at the cost of another pass.

    A pass must treat each sample by itself and without chance: put the model in eval mode or leave dropout
    out. For each new batch size one sample is passed alone and the results are compared; a parameter whose
    norm differs gets explicit gradients from then on. Compiled models are not watched: give the plain one.

    The model is left as it was: no hooks, no flags, no `.grad`.

    Args:
        model: Any module.
        loss: Its losses on a batch.
        parameters: Chooses parameters by name; all that require a gradient by default.

    Attributes:
        parameters: The chosen parameters that require a gradient, by name; tied ones once.

    Raises:
        UserError: If nothing is chosen, or samples depend on each other through batch normalisation.
    """

    def __init__(self, model: nn.Module, loss: Loss, parameters: Callable[[str], bool] | None = None) -> None:
        self.parameters: dict[str, nn.Parameter] = {
            name: parameter
            for name, parameter in model.named_parameters()
            if parameter.requires_grad and (parameters is None or parameters(name))
        }
        if not self.parameters:
            raise UserError(
                "no parameter is left to measure: choose some that the model has and that require a gradient"
            )
        self._model, self._loss = model, loss
        self._explicit: set[str] = set()
        self._checked: set[int] = set()

    def __call__(self, batch: Batch) -> Gradients:
        """Measure one batch.

        Args:
            batch: What the loss takes.

        Raises:
            UserError: If batch normalisation is in training mode, or a sample's loss depends on the others
                or on chance.
            ValueError: If the loss does not return one row for each sample.
        """
        _refuse_batch_statistics(self._model)
        count = next(len(x) for x in batch if x is not None)
        names = list(self.parameters)
        trace = Trace(self.parameters, count)
        with torch.enable_grad():
            with trace:
                values = self._loss(self._model, batch)
            if values.ndim not in (1, 2) or len(values) != count:
                raise ValueError(f"losses must be ({count},) or ({count}, k), not {tuple(values.shape)}")
            total = self._differentiate(values)
        trace.finish()
        values = values.detach()
        unseen = {name for name, g in total.items() if name not in trace.squares and bool(g.any())}
        explicit = self._explicit | trace.unknown | unseen
        zero = torch.zeros(count, dtype=torch.float64, device=values.device)
        squares = {name: trace.squares.get(name, zero).to(values.device) for name in names}
        if count not in self._checked:
            differing = self._check(batch, values, squares, explicit, trace.rounded)
            self._explicit |= differing
            explicit |= differing
            self._checked.add(count)
        if explicit:
            squares.update(self._explicit_squares(batch, [name for name in names if name in explicit]))
        return Gradients(values, torch.stack([squares[name] for name in names], 1), total)

    def _differentiate(self, values: Tensor) -> dict[str, Tensor]:
        """Gradient of the sum of the losses."""
        parameters = self.parameters
        found: Iterable[Tensor | None] = [None] * len(parameters)
        if values.requires_grad:
            losses = _first(values).sum()
            found = torch.autograd.grad(losses, list(parameters.values()), allow_unused=True)
        return {
            name: torch.zeros_like(p) if g is None else g.detach()
            for (name, p), g in zip(parameters.items(), found, strict=True)
        }

    def _check(
        self, batch: Batch, values: Tensor, squares: dict[str, Tensor], explicit: set[str], rounded: bool
    ) -> set[str]:
        """Pass the last sample alone; return the parameters whose norms are not what they seemed."""
        with torch.enable_grad():
            alone = self._loss(self._model, _rows(batch, slice(-1, None)))
            single = self._differentiate(alone)
        dtype = next(iter(self.parameters.values())).dtype
        relative, absolute = _HALF_TOLERANCE if rounded else _TOLERANCE.get(dtype, _HALF_TOLERANCE)
        here, there = float(_first(values)[-1]), float(_first(alone).detach()[-1])
        # NaN compares as equal here: whoever asked sees it in the values.
        if abs(here - there) > relative * float(_first(values).abs().max()):
            raise UserError(
                f"a sample's loss is {here:.6g} in a batch and {there:.6g} alone: per-sample gradients need a"
                " model without dropout and without exchange between samples (model.eval())"
            )
        true = {name: float(g.double().square().sum()) for name, g in single.items()}
        least = absolute * sum(true.values())
        return {
            name
            for name, square in true.items()
            if name not in explicit and abs(float(squares[name][-1]) - square) > relative * square + least
        }

    def _explicit_squares(self, batch: Batch, names: list[str]) -> dict[str, Tensor]:
        """Squared norms from explicit per-sample gradients, (B,) float64 each."""
        whole = _Whole(self._model, self._loss)
        chosen = {f"model.{name}": self.parameters[name].detach() for name in names}

        def loss(parameters: dict[str, Tensor], *sample: Tensor | None) -> Tensor:
            one = tuple(None if x is None else x[None] for x in sample)
            return _first(functional_call(whole, parameters, (one,))).sum()

        axes = (None, *(None if x is None else 0 for x in batch))
        per_sample = vmap(grad(loss), in_dims=axes)
        size = sum(p.numel() * p.element_size() for p in chosen.values())
        count, step = next(len(x) for x in batch if x is not None), max(1, _CHUNK_BYTES // size)
        parts = []
        for first in range(0, count, step):
            try:
                gradients = per_sample(chosen, *_rows(batch, slice(first, first + step)))
            except RuntimeError:
                # What the model does cannot be vectorised over samples.
                gradients = self._one_by_one(_rows(batch, slice(first, first + step)), names)
            parts.append([gradients[f"model.{name}"].flatten(1).double().square().sum(1) for name in names])
        return {name: torch.cat(column) for name, column in zip(names, zip(*parts, strict=True), strict=True)}

    def _one_by_one(self, batch: Batch, names: list[str]) -> dict[str, Tensor]:
        count = next(len(x) for x in batch if x is not None)
        with torch.enable_grad():
            rows = [
                self._differentiate(self._loss(self._model, _rows(batch, slice(i, i + 1))))
                for i in range(count)
            ]
        return {f"model.{name}": torch.stack([row[name] for row in rows]) for name in names}


class _Whole(nn.Module):
    """The loss as a module, which is what torch.func can put parameters into."""

    def __init__(self, model: nn.Module, loss: Loss) -> None:
        super().__init__()
        self.model, self._loss = model, loss

    def forward(self, batch: Batch) -> Tensor:
        return self._loss(self.model, batch)


def _first(values: Tensor) -> Tensor:
    return values if values.ndim == 1 else values[:, 0]


def _rows(batch: Batch, rows: slice) -> Batch:
    return tuple(None if x is None else x[rows] for x in batch)


def _refuse_batch_statistics(model: nn.Module) -> None:
    for name, module in model.named_modules():
        if isinstance(module, _BatchNorm) and (module.training or module.running_mean is None):
            remedy = "call model.eval()" if module.training and module.track_running_stats else "replace it"
            raise UserError(
                f"{name or 'the model'} ({type(module).__name__}) normalises over the batch, so that no"
                f" sample has a gradient of its own: {remedy}, or use group normalisation"
            )
