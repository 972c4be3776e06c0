"""Where a path is written down it is by its text form: the name alone would lose its constants."""

import pytest
import torch

from flowtempo.design import Design, design
from flowtempo.errors import UserError
from flowtempo.interpolants import Linear, Shifted, VariancePreserving, interpolant
from flowtempo.objectives import Objective
from flowtempo.report.figures.variance import time_label
from flowtempo.report.summary import _same_path
from flowtempo.variance import VarianceProfile
from flowtempo.variance.probe import probe

GRID = torch.linspace(-14, 14, 65, dtype=torch.float64)
PATH = Shifted(VariancePreserving(0.2), 3)


def profile(quantity, **more):
    mean = 1 / (1 + GRID.exp())
    return VarianceProfile(quantity, "made up", "estimate", GRID, mean, 0 * mean, 4, 1.0, **more)


def test_a_design_keeps_the_constants(tmp_path):
    made = design(profile("posterior_variance"), Shifted(Linear(), 3), resamples=0)
    assert made.interpolant == "shifted(linear, 3)"
    made.save(tmp_path / "density.json")
    assert interpolant(Design.load(tmp_path / "density.json").interpolant) == Shifted(Linear(), 3)


def test_gradients_belong_to_one_set_of_constants():
    model = {"interpolant": str(PATH), "prediction": "velocity"}
    measured = profile("gradient_variance", model=model)
    assert design(measured, PATH, resamples=0).interpolant == str(PATH)
    with pytest.raises(UserError, match=r"on shifted\(variance_preserving, 3\) is asked"):
        design(measured, Shifted(VariancePreserving(), 3), resamples=0)


def test_a_probe_keeps_the_constants():
    class Network(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(3, 3)

        def forward(self, x, t, y):
            return self.linear(x)

    x1 = torch.randn(8, 3, generator=torch.Generator().manual_seed(0))
    t = torch.tensor([0.3, 0.6], dtype=torch.float64)
    measured = probe(Network(), Objective(PATH), lambda rows: (x1[rows], None), 8, t=t)
    assert measured.profiles["loss"].model["interpolant"] == str(PATH)


def test_labels_and_comparisons_use_the_constants():
    assert time_label(PATH) == "t on the shifted(variance-preserving(0.2), 3) path"
    assert _same_path("variance_preserving(0.1, 20)", "variance_preserving")
    assert not _same_path("variance_preserving(0.2)", "variance_preserving")
    assert _same_path("of another version", "of another version")
