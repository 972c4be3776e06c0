"""`flowtempo train`: a recipe -> a run folder."""

from __future__ import annotations

from typing import Any

from flowtempo.cli.console import print_header, progress_bar, say, say_next
from flowtempo.design import Design
from flowtempo.errors import UserError
from flowtempo.interpolants import interpolant
from flowtempo.training import TrainConfig, TrainResult
from flowtempo.training import train as train_run

RECIPE_KEYS = tuple(TrainConfig.__dataclass_fields__)
EXAMPLES = """
  flowtempo train digits --run runs/uniform
  flowtempo train digits --run runs/designed --timesteps.target density.json
  flowtempo train digits --run runs/kept --timesteps.density "logit_normal(-0.75, 1)"
  flowtempo train my.yaml --run runs/mine --optimizer.lr 3e-4
  flowtempo train digits --run runs/uniform --steps 2000 --resume
"""


def train(config: TrainConfig, *, run: str, resume: bool = False) -> int:
    """Train a model, drawing times from the density that the configuration names.

    Everything goes into the run folder: the resolved config.yaml, metrics.jsonl, TensorBoard events and
    checkpoints. Ctrl-C and SIGTERM finish the current step and save; --resume goes on from there and gives,
    on a CPU, the same weights bit by bit as a run that was never stopped.

    Args:
        config: The settings.
        run: The run folder: new, or with --resume an earlier one.
        resume: Continue the run from its newest checkpoint.
    """
    result = run_training(config, run, resume=resume, description="train")
    if result.skipped:
        say(
            f"warning: {result.skipped} of {result.step} steps were skipped, for their loss or gradient was "
            "not finite: lower optimizer.lr or set optimizer.clip_norm"
        )
    if result.interrupted:
        say(f"stopped and saved at step {result.step}; go on with the same command and --resume")
    else:
        say(f"run: {run} (step {result.step})")
        say_next("generate", run)
    return result.exit_code


def run_training(config: TrainConfig, run: str, *, resume: bool, description: str) -> TrainResult:
    """Train with the header and a progress bar."""
    _warn_of_foreign_designs(config)
    with progress_bar(description) as progress:

        def show(record: dict[str, Any]) -> None:
            if record["kind"] == "header":
                print_header(record)
            elif record["kind"] == "begin":
                progress(None, f"{description}: {record['what']}")

        return train_run(config, run, resume=resume, progress=progress, callback=show)


def _warn_of_foreign_designs(config: TrainConfig) -> None:
    objective = config.objective
    for text in (config.timesteps.target, config.timesteps.density):
        if text is None or not text.strip().endswith(".json"):
            continue
        try:
            designed = Design.load(text.strip())
        except UserError:
            continue  # a bare table says nothing of where it is from, and a damaged file is told by training
        made_for = designed.prediction, designed.interpolant
        used_for = objective.prediction, str(interpolant(objective.interpolant))
        if made_for != used_for:
            say(
                f"warning: {text} was designed for {made_for[0]} on the {made_for[1]} interpolant, but this "
                f"run trains {used_for[0]} on the {used_for[1]} one, where times mean something else"
            )
