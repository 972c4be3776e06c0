"""`flowtempo demo`: the whole job on scikit-learn's digits."""

from __future__ import annotations

from pathlib import Path

from flowtempo.cli.console import say, table
from flowtempo.cli.design import print_design
from flowtempo.cli.evaluate import evaluate_samples, evaluation_path, reference_of
from flowtempo.cli.generate import generate_samples
from flowtempo.cli.measure import measure_images, print_bracket
from flowtempo.cli.parsing import config_from_recipes
from flowtempo.cli.train import run_training
from flowtempo.data import load
from flowtempo.design import design
from flowtempo.interpolants import interpolant
from flowtempo.metrics import Evaluation
from flowtempo.report import read_run, write_report
from flowtempo.training import TrainConfig
from flowtempo.training.config import check
from flowtempo.variance import Bracket

RECIPE = "digits"
# Enough for 64 features; the standard error says how far it goes.
IMAGES = 500
SOLVER_STEPS = 20
EXAMPLES = """
  flowtempo demo
  flowtempo demo --output runs/long --steps 3000
"""


def demo(output: str = "runs/demo", steps: int = 800) -> int:
    """Measure, design, train twice, generate, evaluate and report, on 1,500 images of 8x8 pixels.

    Two arms differ in nothing but the density of times: uniform, and the one designed from the measured upper
    edge (rule `paper`). Run it again to continue where it was stopped.

    Args:
        output: The folder for everything.
        steps: Optimizer steps of each arm.
    """
    folder = Path(output)
    profile, density, page = folder / "profile.json", folder / "density.json", folder / "report.html"
    say(f"flowtempo demo: measure, design, train two arms, generate, evaluate, report -> {page}")

    uniform = _config("uniform", steps)
    check(uniform)
    data = load(uniform.data)
    if profile.exists():
        say(f"{profile}: already measured")
        bracket = Bracket.load(profile)
    else:
        bracket = measure_images([data])
        bracket.save(profile)
    print_bracket(bracket, interpolant("linear"), "velocity")
    objective = uniform.objective
    designed = design(
        bracket, interpolant(objective.interpolant), rule="paper", prediction=objective.prediction
    )
    designed.save(density)
    print_design(designed)

    reference = reference_of(data, None)
    arms = {"uniform": uniform, "designed": _config(str(density), steps)}
    evaluations: dict[str, list[Evaluation]] = {}
    for name, config in arms.items():
        run = folder / name
        started = (run / "config.yaml").exists()
        result = run_training(config, str(run), resume=started, description=f"train {name}")
        if result.interrupted:
            say(f"stopped and saved at step {result.step}; run the same command to go on")
            return result.exit_code
        evaluations[name] = []
        for step in sorted({*range(config.checkpoint_every, steps, config.checkpoint_every), steps}):
            record = evaluation_path(run, step, reference[1].name)
            if record.exists():
                evaluations[name].append(Evaluation.load(record))
                continue
            samples = generate_samples(
                str(run),
                count=IMAGES,
                step=step,
                track="ema",
                steps=SOLVER_STEPS,
                description=f"generate {name} @{step}",
            )
            evaluations[name].append(evaluate_samples(run, samples, *reference)[0])

    write_report(page, runs=[folder / name for name in arms], profile=profile, densities=[density])
    _print_table(folder, evaluations)
    say(f"report: {page}")
    return 0


def _config(target: str, steps: int) -> TrainConfig:
    return config_from_recipes([RECIPE], [f"--timesteps.target={target}", f"--steps={steps}"])


def _print_table(folder: Path, evaluations: dict[str, list[Evaluation]]) -> None:
    rows = []
    for name, records in evaluations.items():
        run = read_run(folder / name)
        loss = run.final_reference()
        rows.append(
            [
                name,
                *(f"{record.frechet:.2f} ± {record.stderr:.2f}" for record in records),
                "" if loss is None else f"{loss.loss:.4f}",
                "" if run.seconds is None else f"{run.seconds:.0f} s",
            ]
        )
    steps = [f"step {record.step}" for record in next(iter(evaluations.values()))]
    table(
        "Frechet distance (lower is better), loss on fixed times and noise, training time",
        ["arm", *steps, "reference loss", "seconds"],
        rows,
    )
    say("One seed for each arm: another one can change the order, so this is no verdict.")
