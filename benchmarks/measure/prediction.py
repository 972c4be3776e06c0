"""Which estimate predicts the measured gradient variance, and which makes the better proposal.

Three data sets, models of two sizes, three moments of training with uniform times (one seed; batch 64),
gradients probed on test images. Predictors of E|g|^2 and Var g over t on the linear path: the target
variance from either edge of the bracket, the loss, the root of its second moment, and the Gaussian with
the data's second moment.

Rank correlation: Spearman's, over 99 even times. Efficiency: the least possible variance of the gradient,
integral(sqrt(E|g|^2))^2, over that under the proposal proportional to the root of the predictor (5% uniform
mixed in), integral(E|g|^2 / q), for a uniform objective. The intervals are bootstraps over the blocks of
probed images, of the gradient alone: they leave out that the losses come from the same images.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from common import PICTURES, pictures, print_table, probed, trained
from ending import QUICK, RESULTS, finish
from matplotlib import pyplot
from torch import Tensor

from flowtempo.design import variance_curve
from flowtempo.design.bootstrap import resampled
from flowtempo.interpolants import Linear
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


def draw(figure_rows: list[tuple[str, list[tuple[int, dict[str, Tensor], Tensor]]]]) -> None:
    figure, axes = pyplot.subplots(
        len(figure_rows),
        len(MOMENTS),
        figsize=(10, 2.1 * len(figure_rows)),
        sharex=True,
        layout="constrained",
    )
    for panels, (name, moments) in zip(axes, figure_rows, strict=True):
        for panel, (step, curves, truth) in zip(panels, moments, strict=True):
            panel.semilogy(T, truth / truth.mean(), "k", linewidth=2, label="measured E|g|²")
            for label, curve in curves.items():
                panel.semilogy(T, (curve / curve.mean()).clamp(min=1e-2), linewidth=1, label=label)
            panel.set_title(f"{name}, step {step}", fontsize=9)
            panel.set_ylim(0.05, 20)
    for panel in axes[-1]:
        panel.set_xlabel("t")
    axes[0, 0].legend(fontsize=6)
    figure.supylabel("relative to its mean over t")
    figure.savefig(RESULTS / "measure_prediction.png", dpi=100)


if __name__ == "__main__":
    results: list[dict[str, object]] = []
    pictured = []
    for name in PICTURES:
        data, held_out = pictures(name, limit=LIMIT), pictures(name, "test")
        if data is None or held_out is None:
            continue
        bracket = measure(data, target_stderr=0.01)
        for size in SIZES[name]:
            shown = []
            for step, model in trained(data, size, MOMENTS, seed=0):
                probe = probed(model, held_out, IMAGES, probe_times(TIMES), seed=0)
                results.append(
                    {"data": name, "size": size, "step": step, "predictors": judged(bracket, probe)}
                )
                truth = probe.profiles["gradient_second_moment"].at(Linear().log_snr(T))[0]
                shown.append((step, predictors(bracket, probe), truth))
                print(f"{name} {size} step {step}: done", flush=True)
            pictured.append((f"{name} {size}", shown))
    names = list(results[0]["predictors"])  # type: ignore[call-overload]
    rows = []
    for each in results:
        found = each["predictors"]
        cells = [
            (f"{found[key]['rank_correlation']:+.2f} " if key != "uniform" else "")  # type: ignore[index]
            + f"({found[key]['efficiency']:.2f})"  # type: ignore[index]
            for key in names
        ]
        rows.append([f"{each['data']} {each['size']} step {each['step']}", *cells])
    print_table(["rank correlation (efficiency)", *names], rows)
    figures = {}
    for key in names:
        label = key.replace(" ", "_")
        found = [each["predictors"][key] for each in results]  # type: ignore[index]
        figures[f"prediction_efficiency_{label}"] = float(
            torch.tensor([f["efficiency"] for f in found]).mean()
        )
        if key != "uniform":
            ranks = torch.tensor([f["rank_correlation"] for f in found])
            figures[f"prediction_rank_{label}"] = float(ranks.mean())
    best = max(
        (key for key in names if key != "uniform"),
        key=lambda k: figures[f"prediction_rank_{k.replace(' ', '_')}"],
    )
    print(f"Over {len(results)} models the best predictor by rank is: {best}.")
    if not QUICK:
        draw(pictured)
    finish("prediction", {"results": results, "images": IMAGES, "seed": 0}, figures)
