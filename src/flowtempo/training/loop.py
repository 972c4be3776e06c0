"""The training loop: from a configuration to a run folder."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import flowtempo
from flowtempo.data import ArrayData, load
from flowtempo.errors import UserError
from flowtempo.models import build
from flowtempo.objectives import LearnedUncertainty
from flowtempo.runtime import Runtime
from flowtempo.timesteps import AdaptiveProposal, Proposing
from flowtempo.training import checkpoint
from flowtempo.training.batches import Batches
from flowtempo.training.checkpoint import Checkpoint
from flowtempo.training.config import TrainConfig, check, save_config
from flowtempo.training.ema import EMA, initial_weight
from flowtempo.training.feedback import Feedback
from flowtempo.training.interrupt import Interrupts
from flowtempo.training.lock import FolderLock
from flowtempo.training.optimizer import build_optimizer
from flowtempo.training.probing import ProbeSet, drop_later, probe_path, probe_record, share_of
from flowtempo.training.records import Records, strict
from flowtempo.training.run import CHECKPOINTS, CONFIG, check_match
from flowtempo.training.start import check_folder, checkpoint_to_resume, resolve
from flowtempo.training.step import TrainStep
from flowtempo.training.validate import Reference

Record = dict[str, Any]
# Of a probe during training, which must not take longer than the training.
_PROBE_TIMES = 17


@dataclass(frozen=True)
class TrainResult:
    """How a call of `train` ended.

    Attributes:
        folder: The run folder.
        step: Optimizer steps done, all calls together.
        signal: The signal that ended it early, or None.
        reference: The last reference loss of each track ("raw", "ema") that this call computed.
        skipped: Steps of all calls together that changed nothing, for their loss or gradient was not finite.
    """

    folder: Path
    step: int
    signal: int | None
    reference: dict[str, float]
    skipped: int = 0

    @property
    def interrupted(self) -> bool:
        """Whether a signal ended it before the last step."""
        return self.signal is not None

    @property
    def exit_code(self) -> int:
        """0, or 128 + the signal (143 for SIGTERM, 130 for Ctrl-C)."""
        return 0 if self.signal is None else 128 + self.signal


def train(
    config: TrainConfig,
    run_folder: str | Path,
    *,
    resume: bool = False,
    progress: Callable[[float], None] | None = None,
    callback: Callable[[Record], None] | None = None,
) -> TrainResult:
    """Train a model and leave everything in `run_folder`.

    On SIGTERM or Ctrl-C the current step is finished and saved; a resumed run then ends, on a CPU, with the
    same bits as one that was never stopped.

    Args:
        config: The settings.
        run_folder: A new or empty folder; with `resume` one that a run was started in.
        resume: Go on from the newest checkpoint, or from the start if there is none yet.
        progress: Called after each step with the fraction done.
        callback: Called on the main process with each record of metrics.jsonl once it is written, with
            {"kind": "checkpoint", "step", "folder"} once a checkpoint is, and with {"kind": "begin", "step",
            "what"} before a reference loss or a probe is measured.

    Raises:
        UserError: A setting, the data, the run folder or a checkpoint is not as it must be.
    """
    check(config)
    folder = Path(run_folder)
    check_folder(folder, resume)
    runtime = Runtime()
    with contextlib.ExitStack() as stack:
        if resume:
            # First of all, so that no other process goes on from the checkpoint that this one finds.
            stack.enter_context(FolderLock(folder, runtime))
        data = load(config.data)
        config = resolve(config, data, runtime)
        newest = checkpoint_to_resume(folder, config, data) if resume else None
        trainer = _Trainer(config, folder, data, runtime, newest, callback)
        if not resume:
            # Last of all, so that a mistake makes no folder; another process may have come first.
            stack.enter_context(FolderLock(folder, runtime))
            check_folder(folder, resume)
        # Nobody may make files in the folder before everybody has found it empty.
        runtime.barrier()
        return trainer.run(progress, resume=resume)


class _Trainer:
    """Everything that lives as long as one call of `train`."""

    def __init__(
        self,
        config: TrainConfig,
        folder: Path,
        data: ArrayData,
        runtime: Runtime,
        resumed: Checkpoint | None,
        callback: Callable[[Record], None] | None,
    ) -> None:
        self.config = config
        self.folder = folder
        self.data = data
        self.runtime = runtime
        self.callback = callback
        self.objective = config.objective.build()
        proposal = config.timesteps.build(config.steps)
        self.described = proposal.describe()
        self.feedback: Feedback | None = None
        if isinstance(proposal, AdaptiveProposal):
            self.feedback = Feedback(proposal, self.objective.interpolant)
        self.proposal: Proposing = self.feedback or proposal
        self.batches = Batches(
            data,
            self.proposal,
            batch_size=config.batch_size,
            accumulate=config.accumulate,
            seed=config.seed,
            label_dropout=config.label_dropout or 0.0,
            multi_sample=config.objective.build_multi_sample(),
            coupling=config.objective.build_coupling(),
            interpolant=self.objective.interpolant,
            rank=runtime.rank,
            world_size=runtime.world_size,
        )
        reference_data = (
            data if config.reference_data is None else load(config.reference_data, scaling=data.scaling)
        )
        check_match(folder, data.shape, data.num_classes, reference_data)
        self.reference = Reference(reference_data, config.reference_count)
        self.probed: ProbeSet | None = None
        if config.probe_every is not None:
            count = min(config.probe_images, len(reference_data))
            self.probed = ProbeSet(reference_data, count, trained_on=data)

        self.model = build(
            config.model,
            data.shape,
            data.num_classes,
            seed=config.seed,
            interpolant=self.objective.interpolant,
            data_std=data.std,
        )
        self.model = self.model.to(runtime.device)
        self.ema = EMA(self.model, config.ema_decay)
        optimizer = build_optimizer(config.optimizer, self.model)
        self.uncertainty: LearnedUncertainty | None = None
        if config.objective.learned_uncertainty:
            self.uncertainty = LearnedUncertainty().to(runtime.device)
            optimizer.add_param_group({"params": self.uncertainty.parameters(), "weight_decay": 0.0})
        network: torch.nn.Module = torch.compile(self.model) if config.compile else self.model  # type: ignore[assignment]
        self.step = TrainStep(
            runtime.prepare(network),
            optimizer,
            self.ema,
            self.objective,
            config,
            runtime,
            self.feedback,
            self.uncertainty,
        )
        self.done = 0
        self.seconds = 0.0
        self.losses: dict[str, float] = {}
        if resumed is not None:
            self._restore(resumed)
        self.records: Records | None = None  # of the main process only, from the first step on

    def run(self, progress: Callable[[float], None] | None, *, resume: bool) -> TrainResult:
        if self.runtime.is_main:
            self.folder.mkdir(parents=True, exist_ok=True)
            save_config(self.config, self.folder / CONFIG)
            checkpoint.prune(self.folder / CHECKPOINTS, self.config.keep_checkpoints)
            drop_later(self.folder, self.done)
            # A run that was stopped before its first checkpoint begins anew: none of its lines stay.
            kept = (self.done or -1) if resume else None
            self.records = Records(self.folder, keep=kept)
        try:
            with Interrupts() as interrupts:
                if self.done == 0:
                    self._write(self._header())
                    self._reference()
                self._steps(interrupts, progress)
        finally:
            if self.records is not None:
                self.records.close()
        return TrainResult(
            self.folder, self.done, interrupts.received, self.losses, self.step.meters.skipped()
        )

    def _steps(self, interrupts: Interrupts, progress: Callable[[float], None] | None) -> None:
        config = self.config
        mark = time.perf_counter()
        pin = self.runtime.device.type == "cuda"
        for batch in self.batches.iterate(self.done, config.steps, pin=pin):
            lr = self.step(batch, self.done)
            self.done += 1
            last = self.done == config.steps
            read = last or self.done % config.log_every == 0
            # Processes must stop at the same step: one can look after each, several agree when they log.
            stop = (read or self.runtime.world_size == 1) and self._stop(interrupts)
            refer = last or self.done % config.reference_every == 0
            probe = config.probe_every is not None and (last or self.done % config.probe_every == 0)
            save = last or stop or self.done % config.checkpoint_every == 0
            if read or refer or probe or save:
                means = self.step.meters.read() if read else None
                self.seconds += time.perf_counter() - mark
                if means is not None:
                    self._write(self._train_record(means, lr))
                if refer:
                    self._reference()
                if probe:
                    self._probe()
                if save:
                    self._save()
                mark = time.perf_counter()
            if progress is not None:
                progress(self.done / config.steps)
            if stop:
                return

    def _stop(self, interrupts: Interrupts) -> bool:
        received = torch.tensor(interrupts.received or 0, device=self.runtime.device)
        anywhere = int(self.runtime.sum(received))
        if anywhere and interrupts.received is None:
            interrupts.received = anywhere
        return bool(anywhere)

    def _header(self) -> Record:
        data, count = self.data.describe(), sum(p.numel() for p in self.model.parameters())
        return {
            "kind": "header",
            "step": 0,
            "data": data,
            "num_classes": self.data.num_classes,
            "model": {"name": self.config.model.name, "size": self.config.model.size, "parameters": count},
            "objective": dataclasses.asdict(self.config.objective),
            "proposal": self.described,
            "epochs": self.config.steps * self.config.batch_size / len(self.data),
            "reference": {"data": self.reference.data.name, "images": self.reference.count},
            "processes": self.runtime.world_size,
            "device": self.runtime.device.type,
            "versions": {"flowtempo": flowtempo.__version__, "torch": torch.__version__},
        }

    def _train_record(self, means: dict[str, float | None], lr: float) -> Record:
        return {
            "kind": "train",
            "step": self.done,
            **means,
            "lr": lr,
            "seconds": round(self.seconds, 3),
            "images": self.done * self.config.batch_size,
            **self._in_force(),
        }

    def _in_force(self) -> Record:
        """The density of the last step that was drawn, if it changes during the run."""
        if self.config.timesteps.adaptive is None and self.config.timesteps.curriculum is None:
            return {}
        described = strict(self.proposal.describe())
        return {"proposal": {key: described[key] for key in ("density", "bands", "max_weight")}}

    def _reference(self) -> None:
        """Measure the weights and their average in float32, uncompiled: the same computation in every run."""
        self._tell({"kind": "begin", "step": self.done, "what": "reference loss"})
        # Without the weighting, so that runs with several of them can be compared.
        objective = dataclasses.replace(self.objective, weighting=None)
        for track, model in (("raw", self.model), ("ema", self.ema.model)):
            result = self.reference.loss(model, objective, self.runtime)
            self.losses[track] = result.loss
            self._write(result.record(self.done, track))

    def _probe(self) -> None:
        """Measure the last weights, uncompiled: they are what the gradients of training belong to."""
        assert self.probed is not None
        self._tell({"kind": "begin", "step": self.done, "what": "probe"})
        setting = {"run": str(self.folder), "step": self.done, "track": "raw"}
        share = share_of(self.runtime)
        try:
            probe = self.probed.probe(
                self.model, self.objective, times=_PROBE_TIMES, share=share, setting=setting
            )
        except UserError as error:
            # Training goes on as it would without the probe, which has no curves of a model that diverged.
            self._write(
                {"kind": "probe", "step": self.done, "track": "raw", "path": None, "error": str(error)}
            )
            return
        # One after the last step alone is not told: a longer run would not have made it.
        if self.feedback is not None and self.done % (self.config.probe_every or 1) == 0:
            self.feedback.probe(self.done - 1, probe)
        if self.runtime.is_main:
            probe.save(probe_path(self.folder, self.done))
        self._write(probe_record(probe, self.objective, self.done, "raw"))

    def _save(self) -> None:
        optimizer: dict[str, Any] = {
            "optimizer": self.step.optimizer.state_dict(),
            "meters": self.step.meters.state(),
        }
        if self.feedback is not None:
            optimizer["adaptive"] = self.feedback.state_dict()
        if self.uncertainty is not None:
            optimizer["uncertainty"] = self.uncertainty.state_dict()
        if self.records is not None:
            # A checkpoint promises that the lines before it are on the disk too.
            self.records.sync()
            folder = checkpoint.save(
                self.folder / CHECKPOINTS,
                self.done,
                weights={"raw": self.model.state_dict(), "ema": self.ema.model.state_dict()},
                optimizer=optimizer,
                state={
                    "data": self.data.describe(),
                    "num_classes": self.data.num_classes,
                    "proposal": strict(self.described),
                    "seconds": self.seconds,
                    "ema_initial_weight": initial_weight(self.done, self.config.ema_decay),
                },
            )
            checkpoint.prune(self.folder / CHECKPOINTS, self.config.keep_checkpoints)
            self._tell({"kind": "checkpoint", "step": self.done, "folder": str(folder)})
        self.runtime.barrier()

    def _restore(self, saved: Checkpoint) -> None:
        for track, model in (("raw", self.model), ("ema", self.ema.model)):
            weights = saved.weights(track)
            try:
                model.load_state_dict(weights)
            except RuntimeError as error:
                raise saved.unusable(checkpoint.WEIGHTS[track]) from error
        content = saved.optimizer()
        try:
            self.step.optimizer.load_state_dict(content["optimizer"])
            self.step.meters.restore(content["meters"])
            if self.feedback is not None:
                self.feedback.load_state_dict(content["adaptive"])
            if self.uncertainty is not None:
                self.uncertainty.load_state_dict(content["uncertainty"])
        except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
            raise saved.unusable(checkpoint.OPTIMIZER) from error
        self.done = saved.step
        self.seconds = saved.state["seconds"]

    def _write(self, record: Record) -> None:
        if self.records is not None:
            self.records.write(record)
            self._tell(record)

    def _tell(self, record: Record) -> None:
        if self.callback is not None and self.runtime.is_main:
            self.callback(record)
