"""Every recipe in the package is found by name, and every key and value in it is right."""

import pytest

from flowtempo import recipes
from flowtempo.cli.parsing import config_from_recipes
from flowtempo.errors import UserError
from flowtempo.training.config import check


def test_experiments():
    experiments = [recipe.name for recipe in recipes.shipped() if not recipe.is_method]
    assert experiments == ["digits", "emoji", "fashion-mnist"]


@pytest.mark.parametrize("name", ["digits", "emoji", "fashion-mnist"])
def test_shipped_recipe_is_sound(name):
    config = config_from_recipes([name])
    check(config)
    config.timesteps.build(config.steps)
    config.objective.build()


def test_overrides_change_single_keys():
    config = config_from_recipes(["digits"], ["--data.limit=100", "--optimizer.lr=0.5"])
    assert (config.data.limit, config.data.kind, config.optimizer.lr) == (100, "digits", 0.5)
    assert config.optimizer.warmup_steps == config_from_recipes(["digits"]).optimizer.warmup_steps


def test_a_path_wins_and_a_name_is_no_path(tmp_path, monkeypatch):
    mine = tmp_path / "digits"
    mine.write_text("steps: 7\n")
    monkeypatch.chdir(tmp_path)
    assert recipes.resolve("digits").resolve() == mine
    with pytest.raises(UserError, match="no such recipe"):
        recipes.resolve("../recipes/digits")
