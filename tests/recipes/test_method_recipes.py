"""Method recipes: what they train, against golden losses and against what their authors' code draws."""

import json
from pathlib import Path

import pytest
import torch
from five_steps import DENSITY, GOLDEN, METHODS, five_losses

from flowtempo import recipes
from flowtempo.cli.main import main
from flowtempo.cli.parsing import config_from_recipes
from flowtempo.predictions import Prediction
from flowtempo.training.config import check

LOSSES = json.loads(GOLDEN.read_text())
PEERS = json.loads((Path(__file__).parents[1] / "golden" / "peers.json").read_text())


@pytest.fixture
def config_of(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "density.json").write_text(json.dumps(DENSITY))

    def config(*names, overrides=()):
        found = config_from_recipes(["digits", *names], overrides)
        check(found)
        return found

    return config


def test_every_method_has_golden_losses():
    assert list(LOSSES) == METHODS


@pytest.mark.parametrize("name", METHODS)
def test_five_steps(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert five_losses(name, tmp_path) == pytest.approx(LOSSES[name], rel=1e-3)


@pytest.mark.parametrize("recipe", recipes.shipped(), ids=lambda recipe: recipe.name)
def test_titles_and_sources(recipe):
    assert recipe.title.endswith(".")
    assert len(recipe.title) < 130
    assert bool(recipe.source) == recipe.is_method


def test_methods_are_laid_over_experiments(config_of):
    config = config_of("min-snr", "stratified", overrides=["--objective.weighting=min_snr(2)"])
    assert config.data.kind == "digits"
    assert (config.objective.interpolant, config.objective.weighting) == ("ddpm_cosine", "min_snr(2)")
    assert config.timesteps.spacing == "stratified"


@pytest.mark.parametrize("name", ["uniform", "lightningdit", "sd3-logit-normal", "sd3-mode", "edm2"])
def test_times_are_those_of_the_public_code(name, config_of):
    """Quantiles of 2^20 draws of theirs, within five of their standard errors, in probability."""
    golden = PEERS[name]["quantiles"]
    levels, t = (torch.tensor(golden[key], dtype=torch.float64) for key in ("level", "t"))
    config = config_of(name)
    density = config.timesteps.build(1).target
    if name == "edm2":
        # Recorded on the linear path for data of standard deviation 0.5; ours is 1, on another path.
        path = config.objective.build().interpolant
        log_snr = 2 * torch.logit(t) + 2 * torch.log(torch.tensor(0.5, dtype=torch.float64))
        t = path.time(log_snr)
    error = 5 * (levels * (1 - levels) / 2**20).sqrt()
    assert ((density.cdf(t) - levels).abs() <= error + 2e-4 * (name == "edm2")).all()


def test_speed_draws_and_weighs_as_its_code(config_of):
    config = config_of("speed")
    golden, path = PEERS["speed"], config.objective.build().interpolant
    below = config.timesteps.build(1).target.mass(0.3, 1)
    assert below == pytest.approx(golden["drawn"]["no_dual"]["below_tau"], abs=5 * (0.08 / 2**20) ** 0.5)
    weights = config.objective.build().weighting.weight("noise", path, path.node_times())
    expected = torch.tensor(golden["weights"]["weight"], dtype=torch.float64)
    torch.testing.assert_close(weights[golden["weights"]["index"]], expected)


def _check_weights(objective, golden, prediction: Prediction):
    path = objective.interpolant
    weights = objective.weighting.weight(prediction, path, path.node_times()[golden["index"]])
    expected = torch.tensor(golden["weight"], dtype=torch.float64)
    torch.testing.assert_close(weights, expected, rtol=1e-6, atol=0)


def test_min_snr_and_p2_weigh_as_their_code(config_of):
    _check_weights(config_of("min-snr").objective.build(), PEERS["min-snr noise"]["weights"], "noise")
    _check_weights(config_of("p2").objective.build(), PEERS["p2"]["weights"], "noise")


def test_the_command_lists_and_shows_them(capsys):
    assert main(["recipes"]) == 0
    lines = capsys.readouterr().out.splitlines()
    for recipe in recipes.shipped():
        assert sum(line.split()[:1] == [recipe.name] for line in lines) == 1
    assert main(["recipes", "min-snr"]) == 0
    assert "weighting: min_snr(5)" in capsys.readouterr().out
    assert main(["recipes", "nothing"]) == 2
    assert "no such recipe" in capsys.readouterr().err
