"""`flowtempo export` as a person types it."""

import csv
import json

import pytest

from flowtempo.cli.main import main
from flowtempo.interop import TARGETS

DENSITY = {"table": {"t": [0, 0.4, 1], "pdf": [0.5, 2, 1]}}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "density.json").write_text(json.dumps(DENSITY))
    return tmp_path


@pytest.mark.parametrize("to", TARGETS)
def test_every_trainer_is_told_direction_settings_and_distance(to, capsys):
    assert main(["export", "density.json", "--to", to]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"density.json for {to}: ")
    assert "draws the density itself" in out or "away in t (Wasserstein-1)" in out
    assert max(map(len, out.splitlines())) < 300


def test_exact_fits_and_far_ones(capsys):
    assert main(["export", "logit_normal(-0.75, 1)", "--to", "sd-scripts-sd3"]) == 0
    out = capsys.readouterr().out
    assert "--weighting_scheme logit_normal --logit_mean 0.75 --logit_std 1 --training_shift 1" in out
    assert "warning" not in out
    assert main(["export", "truncated(uniform, 0.6, 0.65)", "--to", "musubi-tuner"]) == 0
    assert main(["export", "piecewise([0, 0.1, 0.9, 1], [1, 0, 1])", "--to", "musubi-tuner"]) == 0
    assert "warning: that is far" in capsys.readouterr().out


def test_tables_are_written(folder, capsys):
    words = ["export", "density.json", "--to", "table", "--output", "t.csv", "--steps", "11"]
    assert main(words) == 0
    rows = list(csv.DictReader((folder / "t.csv").open()))
    assert len(rows) == 11
    assert float(rows[-1]["cdf"]) == 1
    assert main(["export", "density.json", "--to", "simpletuner", "--output", "s.json"]) == 0
    sigmas = json.loads((folder / "s.json").read_text())["sigma"]
    assert sigmas == sorted(sigmas, reverse=True)
    assert 0 < sigmas[-1] < sigmas[0] < 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["density.json"], "required: --to"),
        (["density.json", "--to", "kohya"], "unknown trainer 'kohya'; known: diffusers, sd-scripts"),
        (["none.json", "--to", "sit"], "none.json: cannot be read"),
        (["normal_logit(0, 1)", "--to", "sit"], "unknown density 'normal_logit'"),
        (["density.json", "--to", "sit", "--shift", "3"], "shift = 3.0 has no effect on sit"),
        (["density.json", "--to", "sit", "--output", "x.csv"], "output = x.csv has no effect"),
        (["density.json", "--to", "table", "--output", "x.txt"], "written as .csv or .json"),
        (["density.json", "--to", "table", "--output", "density.json"], "density.json"),
        (["density.json", "--to", "table", "--steps", "1"], "steps = 1 must be at least 2"),
        (["density.json", "--to", "diffusers", "--shift", "0"], "a shift must be a finite number above 0"),
        (["density.json", "--to", "diffusers", "--steps", "0"], "steps = 0 must be at least 1"),
    ],
)
def test_mistakes_are_told_in_one_line(words, message, capsys, folder):
    assert main(["export", *words]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1
    assert json.loads((folder / "density.json").read_text()) == DENSITY


def test_what_a_trainer_cannot_express_is_refused(folder, capsys):
    assert main(["measure", "digits", "--data.limit", "100", "--noises", "4"]) == 0
    assert main(["design", "profile.json", "--rule", "neyman", "--output", "kept.json"]) == 0
    words = ["--interpolant", "variance_preserving", "--high", "0.999", "--output", "vp.json"]
    assert main(["design", "profile.json", *words]) == 0
    capsys.readouterr()
    for name, to, message in (
        ("kept.json", "diffusers", "keeps the objective by importance weights (rule neyman)"),
        ("kept.json", "sit", "importance weights"),
        ("vp.json", "sd-scripts", "designed on the interpolant variance_preserving"),
        ("vp.json", "torchcfm", "designed on the interpolant variance_preserving"),
    ):
        assert main(["export", name, "--to", to]) == 2
        assert message in capsys.readouterr().err
    assert main(["export", "kept.json", "--to", "torchcfm"]) == 0
    assert "load_proposal('kept.json', 'stratified')" in capsys.readouterr().out
    assert main(["export", "vp.json", "--to", "sit"]) == 0
