"""The command line as a person meets it: help, and one line for each mistake."""

import subprocess
import sys

import pytest
import torch

from flowtempo.cli.main import COMMANDS, main
from flowtempo.variance import Bracket, VarianceProfile


def run(capsys, *words):
    status = main(words)
    captured = capsys.readouterr()
    return status, captured.out, captured.err


@pytest.mark.parametrize("words", [(), ("--help",), ("-h",)])
def test_help_lists_every_command(capsys, words):
    status, out, _ = run(capsys, *words)
    assert status == 0
    assert all(name in out for name in COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_with_examples(capsys, name):
    with pytest.raises(SystemExit) as stopped:
        main([name, "--help"])
    out = capsys.readouterr().out
    assert stopped.value.code == 0
    assert f"usage: flowtempo {name}" in out
    assert f"  flowtempo {name}" in out.split("examples:")[1]


def error_line(capsys, *words):
    status, _, err = run(capsys, *words)
    assert status == 2
    assert err.startswith("error: ")
    assert err.count("\n") == 1, err
    return err


def test_unknown_command_lists_the_known_ones(capsys):
    assert "measure, design" in error_line(capsys, "trian")


def test_missing_files_are_named(capsys, tmp_path):
    missing = str(tmp_path / "no.json")
    assert missing in error_line(capsys, "design", missing)
    assert missing in error_line(capsys, "generate", missing)
    assert missing in error_line(capsys, "evaluate", missing)
    assert missing in error_line(capsys, "report", missing)
    assert missing in error_line(capsys, "report", "--probes", missing)
    assert "nothing to report" in error_line(capsys, "report")
    assert missing in error_line(capsys, "train", "--run", str(tmp_path / "r"), "--timesteps.target", missing)


def test_unknown_recipe_lists_the_shipped_ones(capsys, tmp_path):
    err = error_line(capsys, "train", "fashion", "--run", str(tmp_path / "r"))
    assert "fashion: no such recipe" in err
    assert "digits, emoji, fashion-mnist" in err


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("stepz: 4\n", "unknown key 'stepz'; did you mean 'steps'?"),
        ("optimizer: {learning_rate: 1}\n", "unknown key 'optimizer.learning_rate'"),
        ("steps: many\n", 'option "steps": Expected a whole number. Got value: many'),
        ("data: {kind: mnist}\n", "Got value: mnist"),
        ("data: {kind: idx\n", "not valid YAML"),
        ("- 1\n", "expected keys and values"),
        ("data: digits\n", "data must be keys and values"),
        ("optimizer: 5\n", "optimizer must be keys and values"),
        ("data: &d {x: *d}\n", "not valid YAML"),
        ("steps: " + "[" * 3000, "nested too deeply"),
    ],
)
def test_mistakes_in_a_recipe_name_the_file(capsys, tmp_path, text, told):
    recipe = tmp_path / "mine.yaml"
    recipe.write_text(text)
    err = error_line(capsys, "train", str(recipe), "--run", str(tmp_path / "r"))
    assert str(recipe) in err
    assert told in err
    assert not (tmp_path / "r").exists()


def test_wrong_option_points_to_the_help(capsys, tmp_path):
    assert "flowtempo train --help" in error_line(capsys, "train", "--stepz", "3", "--run", str(tmp_path))
    assert "--run" in error_line(capsys, "train", "digits")


def test_unknown_density_lists_the_known_ones(capsys, tmp_path):
    err = error_line(
        capsys, "train", "digits", "--run", str(tmp_path / "r"), "--timesteps.target", "lognormal(0,1)"
    )
    assert "logit_normal" in err


def test_print_config_is_a_recipe(capsys, tmp_path):
    status, out, _ = run(capsys, "train", "digits", "--print_config", "--optimizer.lr", "0.25")
    assert status == 0
    again = tmp_path / "again.yaml"
    again.write_text(out)
    assert run(capsys, "train", str(again), "--print_config")[1] == out
    assert "lr: 0.25" in out
    assert "--run" in error_line(capsys, "train", "digits", "--print_config", "--run", "x")


def test_design_says_how_to_train_with_it_and_training_warns_of_another_use(capsys, tmp_path):
    grid = torch.linspace(-14, 14, 65, dtype=torch.float64)
    mean = 1 / (1 + grid.exp())
    edge = VarianceProfile("posterior_variance", "closed form", "estimate", grid, mean, 0 * mean, 64, 1.0)
    profile, density = tmp_path / "p.json", tmp_path / "d.json"
    Bracket(edge, edge).save(profile)
    words = [
        "design",
        str(profile),
        "--output",
        str(density),
        "--rule",
        "neyman",
        "--interpolant",
        "trigonometric",
    ]
    status, out, _ = run(capsys, *words)
    assert status == 0
    said = (
        f"--timesteps.density {density} --timesteps.spacing stratified --objective.interpolant trigonometric"
    )
    assert said in out
    small = ["--steps", "1", "--batch_size", "4", "--reference_count", "4"]
    status, out, _ = run(
        capsys, "train", "digits", "--run", str(tmp_path / "r"), *small, "--timesteps.density", str(density)
    )
    assert status == 0
    assert "was designed for velocity on the trigonometric interpolant" in out


def test_dotted_keys_are_not_passed_over(capsys, tmp_path):
    recipe = tmp_path / "dotted.yaml"
    recipe.write_text("optimizer.lr: 0.5\n")
    assert "'optimizer.lr'" in error_line(capsys, "train", str(recipe), "--run", str(tmp_path / "r"))
    recipe.write_text("data: {kind: digits}\nmodel: {size.x: 1}\n")
    assert "'size.x'" in error_line(capsys, "measure", str(recipe))


def test_outputs_do_not_overwrite_inputs_or_each_other(capsys, tmp_path):
    assert "is a folder: name a file" in error_line(capsys, "measure", "digits", "--output", str(tmp_path))
    (tmp_path / "file").touch()
    beneath = str(tmp_path / "file" / "x.json")
    assert "is a file: name another folder" in error_line(capsys, "measure", "digits", "--output", beneath)
    same = str(tmp_path / "p.json")
    assert "output and profile are both" in error_line(capsys, "design", same, "--output", same)
    assert "plot and output are both" in error_line(
        capsys, "measure", "digits", "--output", same, "--plot", same
    )


def test_a_reader_who_leaves_does_not_stop_training(tmp_path):
    words = ["train", "digits", "--run", str(tmp_path / "r"), "--steps", "2", "--batch_size", "4"]
    command = [sys.executable, "-m", "flowtempo.cli.main", *words, "--reference_count", "4"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    process.stdout.close()
    error = process.stderr.read()
    process.stderr.close()
    assert process.wait() == 0, error
    assert (tmp_path / "r" / "checkpoints" / "step-00000002" / "state.json").exists()


def test_wrong_value_of_an_optional_option_is_told_plainly(capsys, tmp_path):
    err = error_line(capsys, "train", "digits", "--run", str(tmp_path / "r"), "--label_dropout", "much")
    assert "label_dropout" in err
    assert "wrong value much" in err
