"""The whole job on digits, by the commands that a person types."""

import errno

import numpy as np
import pytest
import yaml

from flowtempo.cli.evaluate import _newest_samples
from flowtempo.cli.main import main
from flowtempo.metrics import Evaluation

SMALL = ["--steps", "6", "--batch_size", "16", "--reference_count", "16", "--checkpoint_every", "3"]


def flowtempo(*words):
    assert main([str(word) for word in words]) == 0


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    folder = tmp_path_factory.mktemp("job [bold]")
    flowtempo(
        "measure", "digits", "--data.limit", 200, "--noises", 2, "--queries", 32,
        "--output", folder / "profile.json", "--plot", folder / "profile.png",
    )  # fmt: skip
    flowtempo(
        "design", folder / "profile.json", "--output", folder / "density.json", "--plot", folder / "d.png"
    )
    flowtempo(
        "train", "digits", "--run", folder / "run", *SMALL, "--timesteps.target", folder / "density.json"
    )
    flowtempo("generate", folder / "run", "--count", 70, "--steps", 2)
    flowtempo("generate", folder / "run", "--count", 70, "--steps", 2, "--step", 3, "--track", "raw")
    flowtempo("evaluate", folder / "run")
    flowtempo("evaluate", folder / "run", "--step", 3)
    density = folder / "density.json"
    flowtempo("report", folder / "run", "--profile", folder / "profile.json", "--densities", density)
    return folder


def test_artifacts(job):
    for name in ("profile.png", "d.png", "run/samples/step-00000006.png"):
        assert (job / name).read_bytes().startswith(b"\x89PNG")
    page = (job / "run" / "report.html").read_text()
    assert 'id="densities"' in page
    assert 'id="posterior-variance"' in page
    config = yaml.safe_load((job / "run" / "config.yaml").read_text())
    assert config["timesteps"]["target"].endswith("density.json")
    assert config["label_dropout"] == 0.1


def test_generated_images(job):
    with np.load(job / "run" / "samples" / "step-00000006.npz", allow_pickle=False) as arrays:
        assert arrays["arr_0"].shape == (70, 8, 8, 1)
        assert arrays["arr_0"].dtype == np.uint8
        assert arrays["labels"].tolist() == [index % 10 for index in range(70)]


def test_evaluations_carry_how_the_images_were_made(job):
    last = Evaluation.load(job / "run" / "evaluations" / "step-00000006-digits.json")
    assert (last.step, last.card.samples, last.card.reference) == (6, 70, 1500)
    assert (last.card.solver, last.card.steps, last.card.nfe, last.card.ema) == ("heun", 2, 4, "ema")
    assert (last.card.features, last.card.checkpoint) == ("digits", "step-00000006")
    assert last.frechet > 0
    assert last.stderr > 0
    assert Evaluation.load(job / "run" / "evaluations" / "step-00000003-digits.json").card.ema == "raw"


def test_a_trained_run_is_not_overwritten(job, capsys):
    before = (job / "run" / "metrics.jsonl").read_bytes()
    assert main(["train", "digits", "--run", str(job / "run"), *SMALL]) == 2
    assert "--resume" in capsys.readouterr().err
    assert (job / "run" / "metrics.jsonl").read_bytes() == before


def test_damaged_samples_are_named(job, capsys, tmp_path):
    samples = job / "run" / "samples" / "step-00000003.npz"
    whole = samples.read_bytes()
    try:
        samples.write_bytes(whole[: len(whole) // 2])
        assert main(["evaluate", str(job / "run"), "--step", "3"]) == 2
        assert str(samples) in capsys.readouterr().err
    finally:
        samples.write_bytes(whole)


def test_demo_continues_where_it_stopped(tmp_path, capsys, monkeypatch):
    recipe = tmp_path / "small.yaml"
    recipe.write_text("model: {size: micro/2}\nbatch_size: 16\nreference_count: 16\ncheckpoint_every: 1\n")
    monkeypatch.setattr("flowtempo.cli.demo.RECIPE", str(recipe))
    folder = tmp_path / "demo"
    assert main(["demo", "--output", str(folder), "--steps", "2"]) == 0
    first = (folder / "designed" / "metrics.jsonl").read_bytes()
    page = (folder / "report.html").read_bytes()
    out = capsys.readouterr().out
    assert f"report: {folder / 'report.html'}" in out
    assert "step 1" in out
    assert "step 2" in out
    evaluations = list((folder / "uniform" / "evaluations").glob("*.json"))
    assert len(evaluations) == 2
    made = [path.stat().st_mtime_ns for path in evaluations]
    assert main(["demo", "--output", str(folder), "--steps", "2"]) == 0
    assert (folder / "designed" / "metrics.jsonl").read_bytes() == first
    assert (folder / "report.html").read_bytes() == page
    assert [path.stat().st_mtime_ns for path in evaluations] == made


def test_demo_goes_on_from_a_folder_that_has_no_run_yet(tmp_path):
    (tmp_path / "demo" / "uniform").mkdir(parents=True)
    assert main(["demo", "--output", str(tmp_path / "demo"), "--steps", "1"]) == 0


@pytest.mark.parametrize("content", ["[" * 100_000, "{", '{"schema": 1}', "[]"])
def test_damaged_records_of_samples_are_named(job, capsys, content):
    record = job / "run" / "samples" / "step-00000003.json"
    whole = record.read_text()
    try:
        record.write_text(content)
        assert main(["evaluate", str(job / "run"), "--step", "3"]) == 2
        assert str(record) in capsys.readouterr().err
        record.write_text(whole.replace('"step": 3', '"step": 6'))
        assert main(["evaluate", str(job / "run"), "--step", "3"]) == 2
        assert "generate again" in capsys.readouterr().err
    finally:
        record.write_text(whole)


def test_images_that_replace_others_take_their_evaluation_away(job, capsys):
    evaluation = job / "run" / "evaluations" / "step-00000003-digits.json"
    before = evaluation.read_bytes()
    again = ["generate", str(job / "run"), "--count", "70", "--steps", "2", "--step", "3", "--track", "raw"]
    assert main(again) == 0
    assert f"{evaluation}: removed" in capsys.readouterr().out
    assert not evaluation.exists()
    assert main(["evaluate", str(job / "run"), "--step", "3"]) == 0
    assert evaluation.read_bytes() == before


def test_changed_data_are_not_evaluated_against(tmp_path, capsys):
    pixels = np.random.default_rng(0).integers(0, 255, (40, 1, 8, 8), dtype=np.uint8)
    np.save(tmp_path / "c.npy", pixels)
    run = tmp_path / "run"
    data = ["--data.kind", "array", "--data.path", str(tmp_path / "c.npy"), "--model.size", "micro/2"]
    assert main(["train", "--run", str(run), *data, *SMALL]) == 0
    assert main(["generate", str(run), "--count", "8", "--steps", "1"]) == 0
    np.save(tmp_path / "c.npy", 255 - pixels)
    assert main(["evaluate", str(run)]) == 2
    assert "contents changed" in capsys.readouterr().err


def test_latents_are_refused_before_anything_is_generated(tmp_path, capsys):
    np.save(tmp_path / "z.npy", 3 * np.random.default_rng(0).standard_normal((40, 4, 8, 8), dtype=np.float32))
    data = ["--data.kind", "array", "--data.path", str(tmp_path / "z.npy"), "--data.layout", "nchw"]
    run = str(tmp_path / "run")
    assert main(["train", "--run", run, *data, "--model.size", "micro/2", *SMALL]) == 0
    capsys.readouterr()
    assert main(["generate", run, "--count", "8", "--steps", "1"]) == 2
    captured = capsys.readouterr()
    assert "no uint8 form" in captured.err
    assert "generate" not in captured.out


def test_bars_names_and_skipped_steps_are_shown(tmp_path, capsys):
    run = tmp_path / "run [bold]"
    assert main(["train", "digits", "--run", str(run), *SMALL, "--optimizer.lr", "1e30"]) == 0
    out = capsys.readouterr().out
    assert "100%" in out
    assert f"run: {run} (step 6)" in out
    assert "of 6 steps were skipped" in out


def test_interrupted_generation_is_not_taken_for_a_whole(tmp_path, capsys, monkeypatch):
    run = str(tmp_path / "run")
    assert main(["train", "digits", "--run", run, *SMALL]) == 0
    assert main(["generate", run, "--count", "8", "--steps", "1"]) == 0

    def full(path, images, **options):
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr("flowtempo.cli.generate.save_grid", full)
    assert main(["generate", run, "--count", "9", "--steps", "1", "--guidance", "3"]) == 2
    assert "No space left" in capsys.readouterr().err
    assert main(["evaluate", run]) == 2
    assert "generate again" in capsys.readouterr().err


def test_newest_samples_are_chosen_by_number(tmp_path):
    (tmp_path / "samples").mkdir()
    for step in ("99999999", "100000000", "00000010"):
        (tmp_path / "samples" / f"step-{step}.npz").touch()
    assert _newest_samples(tmp_path).name == "step-100000000.npz"
