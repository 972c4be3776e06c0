"""Which estimate predicts the measured gradient variance, and which makes the better proposal.

Three data sets, models of two sizes, three moments of training with uniform times (one seed; batch 64),
gradients probed on test images, brackets of at most 10,000 training images. Predictors of E|g|^2 and Var g
over t on the linear path: the target variance from either edge of the bracket, the loss, the root of its
second moment, and the Gaussian with the data's second moment.

Rank correlation: Spearman's, over 99 even times. Efficiency: the least possible variance of the gradient,
integral(sqrt(E|g|^2))^2, over that under the proposal proportional to the root of the predictor (5% uniform
mixed in), integral(E|g|^2 / q), for a uniform objective. The intervals are bootstraps over the blocks of
probed images, of the gradient alone: they leave out that the losses come from the same images.
"""

from __future__ import annotations

from dataclasses import replace
from statistics import fmean
from typing import Any

import torch
from common import PICTURES, pictures, print_table, probed, trained
from ending import QUICK, RESULTS, finish
from torch import Tensor

from flowtempo.design import variance_curve
from flowtempo.design.bootstrap import resampled
from flowtempo.interpolants import Linear
from flowtempo.report import style
from flowtempo.variance import Bracket, Probe, measure
from flowtempo.variance.bracket import gaussian_shape
from flowtempo.variance.compare import spearman
from flowtempo.variance.probe import probe_times

LIMIT = 300 if QUICK else 10_000
IMAGES, TIMES = (8, 5) if QUICK else (128, 17)
T = torch.linspace(0.01, 0.99, 99, dtype=torch.float64)
SIZES = {
    "digits": ("micro/2", "tiny/2"),
    "fashion_mnist": ("micro/4", "tiny/4"),
    "emoji": ("micro/4", "tiny/4"),
}
MOMENTS = [2, 3, 4] if QUICK else [50, 150, 500]


def predictors(bracket: Bracket, probe: Probe) -> dict[str, Tensor]:
    path, log_snr = Linear(), Linear().log_snr(T)
    second = bracket.upper.second_moment
    gaussian = gaussian_shape(second, log_snr) * (1 / (1 - T)) ** 2
    return {
        "upper edge": variance_curve(bracket.upper, path, "velocity", T).mean,
        "lower edge": variance_curve(bracket.lower, path, "velocity", T).mean,
        "loss": probe.profiles["loss"].at(log_snr)[0],
        "root of loss squared": probe.profiles["loss_second_moment"].at(log_snr)[0].sqrt(),
        "Gaussian": gaussian,
    }


def efficiency(second_moment: Tensor, variance: Tensor) -> float:
    """The least variance over that of the proposal proportional to sqrt(variance), with a floor of 5%."""
    q = variance.sqrt() / variance.sqrt().mean()
    q = 0.95 * q + 0.05
    return float(second_moment.sqrt().mean().square() / (second_moment / q).mean())


def judged(bracket: Bracket, probe: Probe) -> dict[str, object]:
    log_snr = Linear().log_snr(T)
    truth = {key: probe.profiles[key] for key in ("gradient_second_moment", "gradient_variance")}  # type: ignore[index]
    curves = {key: profile.at(log_snr)[0] for key, profile in truth.items()}
    moment = curves["gradient_second_moment"]
    drawn = resampled(truth["gradient_second_moment"], 100, seed=0)
    assert drawn is not None
    again = [replace(truth["gradient_second_moment"], mean=row).at(log_snr)[0] for row in drawn]
    found: dict[str, object] = {}
    for name, curve in predictors(bracket, probe).items():
        spread = torch.tensor([spearman(curve, each) for each in again])
        found[name] = {
            "rank_correlation": spearman(curve, moment),
            "interval": [float(spread.quantile(0.025)), float(spread.quantile(0.975))],
            "with_variance": spearman(curve, curves["gradient_variance"]),
            "efficiency": efficiency(moment, curve),
        }
    found["uniform"] = {"efficiency": efficiency(moment, torch.ones_like(moment))}
    return found


def draw(results: list[dict[str, Any]]) -> None:
    models = list(dict.fromkeys((each["data"], each["size"]) for each in results))
    with style.styled():
        figure = style.new_figure(10, 2.1 * len(models))
        axes = figure.subplots(len(models), len(MOMENTS), sharex=True, sharey=True)
        for index, each in enumerate(results):
            panel = axes[divmod(index, len(MOMENTS))]
            truth = torch.tensor(each["second_moment"])
            panel.semilogy(T, truth / truth.mean(), "k", linewidth=2, label="measured E|g|²")
            for number, (name, values) in enumerate(each["curves"].items()):
                curve = torch.tensor(values)
                panel.semilogy(T, curve / curve.mean(), label=name, **style.line(number))
            panel.set_title(f"{each['data']} {each['size']}, step {each['step']}", fontsize=9)
        decades = [0.001, 0.01, 0.1, 1, 10]
        axes[0, 0].set_ylim(decades[0], 20)
        axes[0, 0].set_yticks(decades, [f"{value:g}" for value in decades])
        for panel in axes[-1]:
            panel.set_xlabel("t")
        axes[len(models) // 2, 0].set_ylabel("relative to its mean over t")
        style.legend(figure, axes[0, 0], columns=4)
        style.to_png(figure, RESULTS / "measure_prediction.png")


def judged_model(name: str, size: str, step: int, bracket: Bracket, probe: Probe) -> dict[str, Any]:
    moment = probe.profiles["gradient_second_moment"].at(Linear().log_snr(T))[0]
    curves = predictors(bracket, probe)
    return {
        "data": name,
        "size": size,
        "step": step,
        "predictors": judged(bracket, probe),
        "second_moment": moment.tolist(),
        "curves": {key: curve.tolist() for key, curve in curves.items()},
    }


if __name__ == "__main__":
    results: list[dict[str, Any]] = []
    for name in PICTURES:
        data, held_out = pictures(name, limit=LIMIT), pictures(name, "test")
        if data is None or held_out is None:
            continue
        bracket = measure(data, target_stderr=0.01)
        for size in SIZES[name]:
            for step, model in trained(data, size, MOMENTS, seed=0):
                probe = probed(model, held_out, IMAGES, probe_times(TIMES), seed=0)
                results.append(judged_model(name, size, step, bracket, probe))
                print(f"{name} {size} step {step}: done", flush=True)
    names = list(results[0]["predictors"])
    rows = []
    for each in results:
        found = each["predictors"]
        cells = [
            (f"{found[key]['rank_correlation']:+.2f} " if key != "uniform" else "")
            + f"({found[key]['efficiency']:.2f})"
            for key in names
        ]
        rows.append([f"{each['data']} {each['size']} step {each['step']}", *cells])
    print_table(["rank correlation (efficiency)", *names], rows)
    figures = {}
    for key in names:
        label = key.replace(" ", "_")
        found = [each["predictors"][key] for each in results]
        figures[f"prediction_efficiency_{label}"] = fmean(f["efficiency"] for f in found)
        if key != "uniform":
            figures[f"prediction_rank_{label}"] = fmean(f["rank_correlation"] for f in found)
    for kind in ("rank", "efficiency"):
        best = max((key for key in figures if f"_{kind}_" in key), key=figures.__getitem__)
        print(f"Over {len(results)} models, best by mean {kind}: {best.split(f'_{kind}_')[1]}.")
    if not QUICK:
        draw(results)
    finish("prediction", {"t": T.tolist(), "results": results, "images": IMAGES, "seed": 0}, figures)
