"""One optimizer step, with nothing in it that waits for the device."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from flowtempo.objectives import LearnedUncertainty, Objective, weighted
from flowtempo.runtime import Runtime
from flowtempo.training.batches import Batch
from flowtempo.training.config import TrainConfig
from flowtempo.training.ema import EMA
from flowtempo.training.feedback import Feedback
from flowtempo.training.optimizer import learning_rate


class Meters:
    """Sums over steps that stay on the device until they are read.

    A step whose loss or gradients are not finite counts in `skipped` and in nothing else.

    Args:
        names: What is summed, beside `steps` and `skipped`.
        runtime: This process.
    """

    def __init__(self, names: tuple[str, ...], runtime: Runtime) -> None:
        self.names = names
        self._runtime = runtime
        # The last two are the number of steps in the sums and, over the whole run, of skipped ones.
        self._sums = torch.zeros(len(names) + 2, device=runtime.device)
        self._one = torch.ones((), device=runtime.device) / runtime.world_size

    def add(self, shares: list[Tensor], finite: Tensor) -> None:
        """Add one step.

        Args:
            shares: A scalar for each name; the sum over processes is what is meant.
            finite: Boolean scalar, the same on all processes; False counts the step as skipped.
        """
        kept = torch.where(finite, torch.stack([*shares, self._one, self._one]), 0)
        kept[-1] = torch.where(finite, 0, self._one)
        self._sums += kept

    def read(self) -> dict[str, float | None]:
        """Means over the steps since the last read, None where all were skipped, and `skipped` so far."""
        *sums, steps, skipped = self._runtime.sum(self._sums).tolist()
        self._sums[:-1] = 0
        means = {name: total / steps if steps else None for name, total in zip(self.names, sums, strict=True)}
        return {**means, "skipped": round(skipped)}

    def skipped(self) -> int:
        """Steps skipped so far, over the whole run; every process must ask."""
        return round(float(self.state()[-1]))

    def state(self) -> Tensor:
        """Everything that `restore` needs, added over processes."""
        return self._runtime.sum(self._sums).cpu()

    def restore(self, state: Tensor) -> None:
        """Go on from `state`, on any number of processes.

        Raises:
            ValueError: It is not what `state` gave for the same names.
        """
        if state.shape != self._sums.shape or state.dtype != self._sums.dtype:
            raise ValueError(f"expected {len(self._sums)} sums, found {tuple(state.shape)}")
        self._sums = state.to(self._sums.device) if self._runtime.is_main else torch.zeros_like(self._sums)


class TrainStep:
    """Forward, backward, clipping, AdamW and EMA.

    A step whose loss or gradient norm is not finite changes no weight and no optimizer state: the fused
    optimizer reads the flag on the device.

    Args:
        network: The model as prepared by the runtime, possibly compiled.
        optimizer: Fused AdamW over its parameters.
        ema: The averaged copy.
        objective: The loss.
        config: The run's settings.
        runtime: This process.
        feedback: Is told the losses of each step, or None.
        uncertainty: Learned with the network, its parameters in the optimizer too; or None.
    """

    def __init__(
        self,
        network: nn.Module,
        optimizer: torch.optim.AdamW,
        ema: EMA,
        objective: Objective,
        config: TrainConfig,
        runtime: Runtime,
        feedback: Feedback | None = None,
        uncertainty: LearnedUncertainty | None = None,
    ) -> None:
        self.network = network
        self.optimizer = optimizer
        self.ema = ema
        self.objective = objective
        self.config = config
        self.runtime = runtime
        terms = ("mse", "direction") if objective.direction else ("mse",)
        self.meters = Meters(("loss", "unweighted", *terms, "grad_norm"), runtime)
        self._parameters = list(network.parameters())
        self._feedback = feedback if feedback is not None and feedback.wants_losses else None
        self._uncertainty = uncertainty

    def __call__(self, batch: Batch, step: int) -> float:
        """Train on this process's share of the batch of 0-based step `step`.

        Returns:
            The learning rate that was used.
        """
        config, world = self.config, self.runtime.world_size
        self.optimizer.zero_grad(set_to_none=True)
        sums = torch.zeros(len(self.meters.names) - 1, device=self.runtime.device)
        told: list[Tensor] = []
        for part, micro in enumerate(batch.split(config.accumulate)):
            micro = micro.to(self.runtime.device)
            with self.runtime.accumulating(self.network, last=part == config.accumulate - 1):
                sums += self._backward(micro, world / config.batch_size, told)
        if self._uncertainty is not None:
            self._average_uncertainty()
        norm = self._clip()
        # The norm is the same on all processes, the sums are not.
        finite = torch.isfinite(norm) & torch.isfinite(self.runtime.sum(sums)).all()
        # AdamW's fused kernel leaves weights, moments and step count alone where found_inf is 1.
        self.optimizer.found_inf = (~finite).float()  # type: ignore[attr-defined]
        lr = learning_rate(config.optimizer, step, config.steps)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.optimizer.step()
        self.ema.update(step)
        self.meters.add([*sums.unbind(), norm / world], finite)
        if self._feedback is not None:
            self._feedback.step(step, self.runtime.sum(torch.stack(told).sum(0)))
        return lr

    def _backward(self, batch: Batch, scale: float, told: list[Tensor]) -> Tensor:
        """Backpropagate; return this part's share of the global means of the loss and its terms."""
        x_t = self.objective.interpolant.mix(batch.x1, batch.x0, batch.t)
        device = self.runtime.device.type
        with torch.autocast(device, dtype=torch.bfloat16, enabled=self.config.precision == "bf16"):
            output = self.network(x_t, batch.t, batch.y)
        losses = self.objective.loss(output.float(), batch.x1, batch.x0, batch.t)
        # Divided by the size of the global batch, never by the sum of the weights, which would bias it.
        # DDP averages over processes, hence the number of processes in `scale`.
        total = losses.total
        if self._feedback is not None:
            told.append(self._feedback.proposal.moments(batch.t, total))
        if self._uncertainty is not None:
            total = self._uncertainty(total, self.objective.interpolant.log_snr(batch.t))
        loss = weighted(total, batch.weight).sum() * scale
        loss.backward()
        shown = [loss.detach() / self.runtime.world_size]
        shown += [v.detach().sum() / self.config.batch_size for v in (losses.total, *losses.terms.values())]
        return torch.stack(shown)

    def _average_uncertainty(self) -> None:
        """As DDP does for the network."""
        assert self._uncertainty is not None
        for parameter in self._uncertainty.parameters():
            if parameter.grad is not None:
                parameter.grad = self.runtime.sum(parameter.grad) / self.runtime.world_size

    def _clip(self) -> Tensor:
        gradients = [p.grad for p in self._parameters if p.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients)
        if self.config.optimizer.clip_norm is not None:
            torch.nn.utils.clip_grads_with_norm_(self._parameters, self.config.optimizer.clip_norm, norm)
        return norm
