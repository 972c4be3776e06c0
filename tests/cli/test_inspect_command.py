"""`flowtempo inspect`: what it reads, the bands it prints, its warnings, and the files it writes."""

import math

import pytest
import torch
import yaml

from flowtempo.cli.main import main
from flowtempo.densities import LogitNormal
from flowtempo.design import design
from flowtempo.training import checkpoint
from flowtempo.variance import Bracket, VarianceProfile

GRID = torch.linspace(-14, 14, 33, dtype=torch.float64)


@pytest.fixture
def run(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def call(*words):
        status = main(["inspect", *(str(word) for word in words)])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return call


@pytest.fixture
def bracket(tmp_path):
    profile = VarianceProfile(
        "posterior_variance",
        "closed form",
        "estimate",
        log_snr=GRID,
        mean=4 / (1 + 4 * GRID.exp()),
        stderr=0 * GRID,
        dim=4,
        second_moment=4.0,
        data={"name": "gaussian", "channel_std": [2.0]},
    )
    made = Bracket(profile, profile)
    made.save(tmp_path / "profile.json")
    return made


def write_run(folder, data=None, **sections):
    folder.mkdir()
    (folder / "config.yaml").write_text(yaml.safe_dump({"data": {"kind": "digits"}, **sections}))
    if data is not None:
        data = {"name": "made up", "fingerprint": "0", "shape": [2, 4, 4], **data}
        state = {"data": data, "num_classes": 0, "proposal": {}, "seconds": 1.0}
        weights = {"raw": {"x": torch.zeros(1)}, "ema": {"x": torch.zeros(1)}}
        checkpoint.save(folder / "checkpoints", 4, weights=weights, optimizer={}, state=state)
    return folder


def column(out, title, index=1):
    """The numbers of one column of the table with this title, by the name of the band."""
    head, _, *lines = [line for line in out[out.index(title) :].splitlines()[1:] if line.strip()]
    columns, found = len(head.split()) - 1, {}
    for line in lines:
        band, *values = line.strip().rsplit(maxsplit=columns)
        if not all(value.replace(".", "").isdigit() for value in values) or len(values) < columns:
            break
        found[band] = float(values[index - 1])
    return found


def test_the_bands_of_one_density(run):
    status, out, err = run("logit_normal(-0.75, 1)", "--std", 2)
    assert (status, err) == (0, "")
    assert "density    logit_normal(-0.75, 1)\n" in out
    assert "objective  velocity on the linear interpolant, weighting none\n" in out
    assert "input      standard deviation 2 (as given)\n" in out
    assert f"normal with mean {-1.5 + 2 * math.log(2):.6g} and standard deviation 2\n" in out
    assert "median -0.11 (-0.5 dB), 90% from -3.40 to 3.18" in out


def test_densities_stand_side_by_side(run):
    status, out, _ = run("logit_normal(0,1)", "uniform")
    assert status == 0
    masses = column(out, "% of the mass per band of t", 1)
    assert list(masses.values()) == [
        pytest.approx(100 * LogitNormal(0.0, 1.0).mass(k / 10, (k + 1) / 10), abs=0.051) for k in range(10)
    ]
    assert list(column(out, "% of the mass per band of t", 2).values()) == [10.0] * 10
    bands = column(out, "% of the mass per band of log-SNR", 1)
    # log-SNR is N(0, 4): a band of 2 is one standard deviation.
    assert bands["0 to 2"] == bands["-2 to 0"] == 34.1
    assert bands["2 to 4"] == 13.6
    weighed = column(out, "% of density × weight", 2)
    whole = math.exp(5) - math.exp(-5)
    assert weighed["8 to 10"] == pytest.approx(100 * (math.exp(5) - math.exp(4)) / whole, abs=0.051)


def test_starved_bands_are_warned_of(run):
    _, out, _ = run("logit_normal(0,1)")
    warning = out[out.index("warning:") :]
    assert "logit_normal(0,1) draws 1.4% in t 0 to 0.1, 1.4% in t 0.9 to 1: under 5%" in warning
    assert "heun in 50 steps visits each; mixture(..., 0.42) would give them 5%" in warning
    assert "warning" not in run("mixture(logit_normal(0,1),0.42)")[1]
    assert "warning" in run("mixture(logit_normal(0,1),0.41)")[1]
    assert "warning" not in run("uniform")[1]


def test_only_bands_that_generation_visits_count(run):
    """Two Euler steps visit t = 0 and 0.5; two of Heun t = 1 as well."""
    _, out, _ = run("logit_normal(0,1)", "--solver", "euler", "--steps", 2)
    assert "in t 0 to 0.1: under" in out
    _, out, _ = run("logit_normal(0,1)", "--steps", 2)
    assert "in t 0 to 0.1, 1.4% in t 0.9 to 1: under" in out
    _, out, _ = run("logit_normal(1,1)", "--steps", 10, "--solver", "euler")
    assert "in t 0.1 to 0.2" in out
    assert "dopri5 visits each" in run("logit_normal(0,1)", "--solver", "dopri5")[1]


def test_interpolant_and_std_may_follow_each_density(run):
    _, out, _ = run(
        "uniform@ddpm_linear@0.5", "uniform@2", "uniform@shifted(linear,3)", "--prediction", "noise"
    )
    assert "noise on the ddpm_linear interpolant" in out
    assert "standard deviation 0.5 (as given)" in out
    assert "logistic with mean 1.38629 and scale 2" in out
    assert "noise on the shifted(linear, 3) interpolant" in out
    assert "[1] uniform@ddpm_linear@0.5\n" in out


def test_a_run_says_what_it_draws_and_how_its_data_vary(run, tmp_path):
    timesteps = {"target": "uniform", "density": "mixture(logit_normal(0, 1), 0.5)"}
    objective = {"interpolant": "trigonometric", "prediction": "v"}
    write_run(tmp_path / "one", {"channel_std": [3.0, 4.0]}, timesteps=timesteps, objective=objective)
    status, out, err = run("one")
    assert (status, err) == (0, "")
    assert "density    mixture(logit_normal(0, 1), 0.5), weighted to the target uniform\n" in out
    assert "objective  v on the trigonometric interpolant" in out
    assert f"standard deviation {math.sqrt(12.5):.4g} (of the run's data)" in out
    write_run(tmp_path / "two", objective=objective)
    assert "standard deviation 1 (assumed)" in run("two")[1]
    assert "v on the linear interpolant" in run("two", "--interpolant", "linear")[1]


def test_recipes_are_read(run, tmp_path):
    (tmp_path / "mine.yaml").write_text(
        "timesteps: {target: 'logit_normal(1, 1)'}\ndata: {target_std: 0.5}\n"
    )
    _, out, _ = run("digits", "mine.yaml")
    assert "[1] digits\n  density    uniform\n" in out
    assert "[2] mine.yaml\n  density    logit_normal(1, 1)\n" in out
    assert "standard deviation 0.5 (data.target_std)" in out


def test_a_design_and_a_profile_are_read(run, tmp_path, bracket):
    made = design(bracket, rule="importance", prediction="v")
    made.save("kept.json")
    status, out, err = run("kept.json", "--profile", "profile.json", "--plot", "a.png", "--html", "a.html")
    assert (status, err) == (0, "")
    assert "density    table('kept.json'), weighted to the target uniform\n" in out
    assert "objective  v on the linear" in out
    assert "standard deviation 2 (of the measured data)" in out
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    assert "kept.json" in (tmp_path / "a.html").read_text(encoding="utf-8")


def test_the_paths_of_fasterdit_are_compared_in_one_picture(run, tmp_path):
    paths = ("ddpm_linear", "ddpm_cosine", "linear", "trigonometric")
    whats = [f"uniform@{path}@{std}" for path in paths for std in ("0.5", "1")]
    status, out, _ = run(*whats, "--prediction", "noise", "--plot", "fasterdit.png")
    assert status == 0
    assert "plot: fasterdit.png" in out
    assert (tmp_path / "fasterdit.png").stat().st_size > 20_000


def test_a_weighting_changes_the_weights_alone(run):
    _, plain, _ = run("uniform", "--prediction", "noise")
    _, capped, _ = run("uniform", "--prediction", "noise", "--weighting", "min_snr(5)")
    assert "weighting min_snr(5)" in capped
    title = "% of the mass per band of t"
    assert column(plain, title) == column(capped, title)
    title = "% of density × weight"
    assert column(capped, title)["8 to 10"] < 20 < column(plain, title)["8 to 10"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "nothing to inspect"),
        (["nothing"], "nothing: neither a file nor a run folder"),
        (["logit_normal(0, -1)"], "std = -1"),
        (["nonsense(1)"], "unknown density"),
        (["gone.json"], "gone.json: cannot be read"),
        (["uniform@spiral"], "unknown interpolant 'spiral'"),
        (["uniform@linear@0"], "std = 0.0 must be"),
        (["uniform@1e+"], "is no number"),
        (["uniform", "--std", "-1"], "std = -1.0 must be"),
        (["uniform", "--prediction", "speed"], "prediction"),
        (["uniform", "--weighting", "heavy"], "unknown weighting"),
        (["uniform@linear", "--interpolant", "linear"], "--interpolant linear has no effect"),
        (["uniform@2", "--std", "2"], "--std 2.0 has no effect"),
        (["uniform", "--solver", "dopri5", "--steps", "5"], "dopri5 chooses its own steps"),
        (["uniform", "--steps", "0"], "steps is 0"),
        (["uniform", "--profile", "gone.json"], "gone.json"),
        (["empty"], "config.yaml: no such file"),
        (["uniform", "--html", "notes.txt"], "exists and is no web page"),
        (["uniform", "--html", "a.html", "--plot", "a.html"], "name another file"),
    ],
)
def test_mistakes_are_one_line_and_write_nothing(run, tmp_path, words, told):
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes.txt").write_text("mine")
    outputs = [] if "--html" in words or not words else ["--plot", "out.png", "--html", "out.html"]
    status, _, err = run(*words, *outputs)
    assert status == 2
    assert told in err
    assert err.count("\n") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "notes.txt"]
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_a_density_longer_than_a_file_name(capsys):
    bands = 400
    edges = ", ".join(str(k / bands) for k in range(bands + 1))
    assert main(["inspect", f"piecewise([{edges}], [{', '.join('1' * bands)}])"]) == 0
    assert capsys.readouterr().out
