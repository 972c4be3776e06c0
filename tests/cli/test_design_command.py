"""`flowtempo design` on what measuring and probing wrote: every rule's fit, and what rests on a collapse."""

import json

import pytest
import torch

from flowtempo.cli.main import main
from flowtempo.design import Design, design
from flowtempo.variance import Bracket, VarianceProfile
from flowtempo.variance.probe import GRADIENTS, LOSSES, Probe

GRID = torch.linspace(-14, 14, 33, dtype=torch.float64)
FLAT = torch.ones_like(GRID)


def profile(mean, quantity="posterior_variance", **more):
    more = {"stderr": 0 * mean, **more}
    return VarianceProfile(
        quantity, "made up", "estimate", log_snr=GRID, mean=mean, dim=4, second_moment=1.0, **more
    )


def probe(model):
    curves = {name: profile(FLAT, name, model=model) for name in GRADIENTS + LOSSES}
    rising = profile(torch.linspace(1, 9, 33, dtype=torch.float64), "gradient_variance", model=model)
    return Probe(
        curves, {"head": {**{name: curves[name] for name in GRADIENTS}, "gradient_variance": rising}}
    )


@pytest.fixture
def bracket(tmp_path):
    mean = 1 / (1 + GRID.exp())
    blocks = mean * (1 + 0.1 * torch.randn(16, 33, generator=torch.Generator().manual_seed(0)))
    without = (16 * mean - blocks) / 15
    stderr = (15 / 16 * (without - without.mean(0)).square().sum(0)).sqrt()
    upper = profile(mean, stderr=stderr, without=without)
    lower = profile(mean, ess=(2 * (-GRID).exp()).clamp(1, 1000))
    known = profile(mean / 2, "class_posterior_variance")
    path = tmp_path / "profile.json"
    Bracket(lower, upper, by_class=Bracket(known, known)).save(path)
    return path


def run(capsys, *words):
    status = main([str(word) for word in words])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def row(out, name):
    return next(line.split() for line in out.splitlines() if line.strip().startswith(name))


def test_every_rule_is_shown_with_its_fit_and_the_chosen_one_is_marked(capsys, tmp_path, bracket):
    output = tmp_path / "density.json"
    status, out, _ = run(capsys, "design", bracket, "--output", output, "--rule", "importance")
    assert status == 0
    assert "designed from the upper edge for velocity on the linear interpolant" in out
    made = Design.load(output)
    assert made.band is not None
    for rule, name in (("paper", "paper"), ("importance", "importance (this one), neyman")):
        fit = made.fit if rule == made.rule else made.alternatives[rule]
        assert row(out, rule) == [
            *name.split(),
            f"{fit.mean:.3f}",
            "±",
            f"{fit.mean_stderr:.3f}",
            f"{fit.std:.3f}",
            "±",
            f"{fit.std_stderr:.3f}",
            f"{fit.distance:.4f}",
        ]


def test_the_mass_that_rests_on_a_collapse_is_said(capsys, tmp_path, bracket):
    output = tmp_path / "density.json"
    _, out, _ = run(capsys, "design", bracket, "--output", output)
    assert (
        "50% of the mass lies at t > 0.5, where the published estimate has collapsed and only the upper"
        in out
    )
    assert "`flowtempo probe` a model" in out
    _, out, _ = run(capsys, "design", bracket, "--output", output, "--edge", "lower")
    assert "50% of the mass lies at t > 0.5, where the estimate that the density was designed from" in out
    assert "use the upper edge" in out
    _, out, _ = run(capsys, "design", bracket, "--output", output, "--by_class")
    assert "from the upper edge given the class" in out
    assert "collapsed" not in out
    assert json.loads(output.read_text())["quantity"] == "class_posterior_variance"


def test_a_probe_needs_no_interpolant_and_says_how_to_train(capsys, tmp_path):
    source, output = tmp_path / "probe.json", tmp_path / "density.json"
    made = probe({"interpolant": "trigonometric", "prediction": "v"})
    made.save(source)
    status, out, _ = run(capsys, "design", source, "--output", output, "--rule", "neyman", "--group", "head")
    assert status == 0
    assert (
        "designed from the measured gradient variance of the parameters head for v on the trigonometric"
        in out
    )
    assert f"--timesteps.density {output} --timesteps.spacing stratified" in out
    assert "--objective.interpolant trigonometric --objective.prediction v" in out
    assert "±" not in out
    assert Design.load(output).density.values.tolist() == pytest.approx(
        design(made, rule="neyman", group="head").density.values.tolist(), rel=1e-12
    )


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--group", "tail"], "unknown group 'tail'; known: head"),
        (["--interpolant", "linear"], "measured for v on trigonometric, but v on linear"),
        (["--edge", "upper"], "no effect on a probe"),
        (["--by_class"], "no effect on a probe"),
    ],
)
def test_mistakes_are_one_line(capsys, tmp_path, options, told):
    source, output = tmp_path / "probe.json", tmp_path / "density.json"
    probe({"interpolant": "trigonometric", "prediction": "v"}).save(source)
    status, _, err = run(capsys, "design", source, "--output", output, *options)
    assert status == 2
    assert told in err
    assert err.count("\n") == 1
    assert not output.exists()
