"""`flowtempo probe` on a small run, as a person types it."""

import json
import os
import shutil
import socket
import subprocess
import sys

import numpy as np
import pytest
import torch

from flowtempo.cli.main import main
from flowtempo.data import load
from flowtempo.randomness import normal
from flowtempo.training import ProbeSet, load_run
from flowtempo.variance import Probe

SMALL = ["--steps", 4, "--batch_size", 8, "--reference_count", 8, "--checkpoint_every", 2]


def flowtempo(*words):
    return main([str(word) for word in words])


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("probe [bold]") / "run"
    words = ["train", "digits", "--run", folder, "--model.size", "micro/2", "--data.limit", 64, *SMALL]
    assert flowtempo(*words) == 0
    return folder


@pytest.fixture(scope="module")
def probed(run):
    path = run.parent / "probe.json"
    assert flowtempo("probe", run, "--images", 16, "--times", 3, "--output", path) == 0
    return Probe.load(path)


@pytest.fixture
def said(capsys):
    def output(*words):
        assert flowtempo(*words) == 0
        return capsys.readouterr().out

    return output


@pytest.fixture
def error(capsys):
    def line(*words):
        assert flowtempo(*words) == 2
        err = capsys.readouterr().err
        assert err.startswith("error: ")
        assert err.count("\n") == 1, err
        return err

    return line


def losses_by_hand(run, track, step=None):
    """The mean loss of 16 images of the run with their labels, at the three times."""
    loaded = load_run(run, step, track)
    x1, y = ProbeSet(load(loaded.config.data), 16, None).batch(torch.arange(16))
    x0 = normal(0, "probe noise", 0, range(16), x1.shape[1:])
    means = []
    for t in (torch.sin(torch.pi / 12 * torch.tensor([1.0, 3.0, 5.0], dtype=torch.float64)) ** 2).float():
        times = t.expand(16)
        output = loaded.model(loaded.objective.interpolant.mix(x1, x0, times), times, y)
        means.append(float(loaded.objective.loss(output, x1, x0, times).total.mean()))
    return means


def test_the_averaged_weights_of_the_newest_checkpoint_are_measured(run, probed):
    found = probed.profiles["loss"]
    assert found.mean.tolist() == pytest.approx(losses_by_hand(run, "ema"), rel=1e-5)
    assert found.mean.tolist() != pytest.approx(losses_by_hand(run, "raw"), rel=1e-5)
    told = {"run": str(run), "step": 4, "track": "ema", "interpolant": "linear", "prediction": "velocity"}
    assert told.items() <= found.model.items()
    assert found.model["parameters"] == sum(p.numel() for p in load_run(run).model.parameters())
    assert found.counts["samples"] == 16
    assert "blocks.3" in probed.groups
    assert "final_layer" in probed.groups


def test_step_track_and_parameters_are_chosen(run, said, tmp_path):
    words = ["--step", 2, "--track", "raw", "--images", 16, "--times", 3, "--batch-size", 5]
    said("probe", run, *words, "--parameters", r"^blocks\.[01]\.attn", "--output", tmp_path / "p.json")
    made = Probe.load(tmp_path / "p.json")
    assert made.profiles["loss"].mean.tolist() == pytest.approx(losses_by_hand(run, "raw", 2), rel=1e-5)
    assert (made.profiles["loss"].model["step"], made.profiles["loss"].model["track"]) == (2, "raw")
    assert list(made.groups) == ["blocks.0", "blocks.1"]


def test_says_what_was_found_and_what_to_do_next(run, said, tmp_path):
    path, png = tmp_path / "p.json", tmp_path / "p.png"
    out = said("probe", run, "--images", 8, "--times", 3, "--output", path, "--plot", png)
    curves = Probe.load(path).profiles
    for name in ("loss", "gradient_second_moment", "gradient_variance", "gradient_norm"):
        assert f"{float(curves[name].mean[1]):.4g} ± {float(curves[name].stderr[1]):.2g}" in out
    assert "0.5000" in out
    assert "8 of 64 images of digits/train, not held out: the run was trained on them" in out
    assert f"next: flowtempo design {path} --rule importance" in out
    assert png.read_bytes().startswith(b"\x89PNG")
    assert flowtempo("design", path, "--rule", "importance", "--output", tmp_path / "density.json") == 0


def test_held_out_images_bound_the_variance(run, probed, said, tmp_path):
    assert probed.denoiser is None
    path = tmp_path / "held.json"
    out = said("probe", run, "--data.split", "test", "--images", 8, "--times", 1, "--output", path)
    # The other keys of the run's data stay.
    assert "8 of 64 images of digits/test, held out: the run was trained on none of them" in out
    assert f"flowtempo measure DATA --denoiser {path}" in out
    made = Probe.load(path)
    assert made.denoiser is not None
    assert made.denoiser.quantity == "class_posterior_variance"
    assert made.denoiser.data["held_out"] is True


def test_other_data_that_hold_training_images_are_not_held_out(run, said, tmp_path):
    trained_on = load(load_run(run).config.data)
    np.savez(tmp_path / "part.npz", images=trained_on.images[10:], labels=trained_on.labels[10:])
    # Other data are described from scratch: a limit of 64, as the run's, would be an error here.
    words = ["--data.kind", "array", "--data.path", tmp_path / "part.npz", "--images", 8, "--times", 1]
    out = said("probe", run, *words, "--output", tmp_path / "p.json")
    assert "8 of 54 images" in out
    assert "not held out: the run was trained on them" in out
    assert Probe.load(tmp_path / "p.json").denoiser is None


def test_training_images_that_changed(tmp_path, said, error):
    random = np.random.default_rng(0)
    images = random.integers(0, 256, (20, 1, 8, 8), dtype=np.uint8)
    np.save(tmp_path / "images.npy", images)
    np.save(tmp_path / "other.npy", 255 - images)
    folder, array = tmp_path / "run", ["--data.kind", "array", "--data.path"]
    words = ["--model.size", "micro/4", *SMALL, "--steps", 1]
    said("train", *array, tmp_path / "images.npy", "--run", folder, *words)
    other = [*array, tmp_path / "other.npy", "--images", 8, "--times", 1, "--output", tmp_path / "p.json"]
    assert "held out: the run was trained on none of them" in said("probe", folder, *other)
    assert Probe.load(tmp_path / "p.json").denoiser.quantity == "posterior_variance"
    np.save(tmp_path / "images.npy", images[:10])
    assert "images.npy: its contents changed since" in error("probe", folder, "--images", 8)
    assert "not held out:" in said("probe", folder, *other)
    (tmp_path / "images.npy").unlink()
    out = said("probe", folder, *other)
    assert "not held out: the run's training images cannot be compared with them" in out
    assert Probe.load(tmp_path / "p.json").denoiser is None


def test_mistakes_are_told_in_one_line(run, error, tmp_path):
    assert "missing: no such run folder" in error("probe", "missing")
    assert "name a run folder" in error("probe")
    assert "no checkpoint of step 3; there are 2, 4" in error("probe", run, "--step", 3)
    assert "65 images to probe: there must be 8 to 64" in error("probe", run, "--images", 65)
    assert "'atn' is found in no parameter's name, such as x_embedder.proj.weight" in error(
        "probe", run, "--images", 8, "--parameters", "atn"
    )
    assert "'(' is no regular expression" in error("probe", run, "--images", 8, "--parameters", "(")
    assert "times is 0" in error("probe", run, "--times", 0)
    assert "batch_size is 0" in error("probe", run, "--batch_size", 0)
    np.save(tmp_path / "wide.npy", np.zeros((9, 1, 8, 10), np.uint8))
    wide = ["--data.kind", "array", "--data.path", tmp_path / "wide.npy"]
    assert "(1, 8, 8), but" in error("probe", run, *wide)
    np.save(tmp_path / "bare.npy", np.zeros((9, 1, 8, 8), np.uint8))
    bare = ["--data.kind", "array", "--data.path", tmp_path / "bare.npy"]
    assert "knows 10 classes" in error("probe", run, *bare)
    assert "have no effect on a run" in error("probe", run, "--transformer", "x")
    assert "have no effect on a transformer" in error("probe", "--transformer", "x", "--step", 3)
    assert "unrecognized arguments: --run" in error("probe", "--run", run)
    assert "unrecognized arguments" in error("probe", "--images", 8, run)
    assert "plot and output are both" in error("probe", run, "--output", "a", "--plot", "a")


def test_an_interrupted_probe_leaves_the_old_file(run, capsys, tmp_path, monkeypatch):
    def interrupted(*arguments, **keywords):
        raise KeyboardInterrupt

    path = tmp_path / "p.json"
    path.write_text("old")
    monkeypatch.setattr(ProbeSet, "probe", interrupted)
    assert flowtempo("probe", run, "--images", 8, "--output", path) == 130
    assert [(item.name, item.read_text()) for item in tmp_path.iterdir()] == [("p.json", "old")]


def test_the_newest_whole_checkpoint_of_a_run_in_training(run, said, tmp_path):
    shutil.copytree(run, tmp_path / "run")
    # What is being written lies beside under another name; a lock says that the run is in use.
    (tmp_path / "run" / "checkpoints" / ".step-00000006.x1").mkdir()
    said("probe", tmp_path / "run", "--images", 8, "--times", 1, "--output", tmp_path / "p.json")
    assert Probe.load(tmp_path / "p.json").profiles["loss"].model["step"] == 4


def test_options_may_be_written_with_dashes(run, capsys, tmp_path, error):
    assert flowtempo("train", "digits", "--print-config", "--probe-every", "7", "--batch-size=5") == 0
    out = capsys.readouterr().out
    assert "probe_every: 7" in out
    assert "batch_size: 5" in out
    assert flowtempo("train", "--print_config", "--reference-data.kind", "digits") == 0
    assert "reference_data:\n  kind: digits" in capsys.readouterr().out
    # Values and unknown options stay as they were typed.
    assert "a-b: no such run folder" in error("probe", "a-b")
    assert "--no-such-thing" in error("probe", run, "--no-such-thing", 3)
    assert "x-y.json: cannot be read" in error("design", tmp_path / "x-y.json")


def by_two_processes(*words):
    """Run a command as torchrun does; return what was printed."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    rendezvous = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    world = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    running = [
        subprocess.Popen(
            [sys.executable, "-m", "flowtempo.cli.main", *map(str, words)],
            env={**os.environ, **rendezvous, **world, "RANK": rank, "LOCAL_RANK": rank},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in ("0", "1")
    ]
    printed = []
    for process in running:
        out, err = process.communicate()
        assert process.returncode == 0, err
        printed.append(out)
    return printed


def test_two_processes_give_the_same_numbers_as_one(run, probed, tmp_path):
    path = tmp_path / "p.json"
    first, second = by_two_processes("probe", run, "--images", 16, "--times", 3, "--output", path)
    assert f"probe: {path}" in first
    assert second == ""
    assert json.loads(path.read_text()) == json.loads((run.parent / "probe.json").read_text())


@pytest.mark.slow
def test_training_by_two_processes_is_probed_as_by_one(tmp_path):
    words = ["train", "digits", "--model.size", "micro/2", *SMALL, "--steps", 1, "--probe-every", 1]
    words += ["--probe_images", 8]
    assert flowtempo(*words, "--run", tmp_path / "one") == 0
    by_two_processes(*words, "--run", tmp_path / "two")
    one, two = (Probe.load(tmp_path / name / "probes/step-00000001.json") for name in ("one", "two"))
    for quantity, profile in one.profiles.items():
        torch.testing.assert_close(two.profiles[quantity].mean, profile.mean, rtol=1e-3, atol=1e-6)
    kinds = [
        json.loads(line)["kind"] for line in (tmp_path / "two" / "metrics.jsonl").read_text().splitlines()
    ]
    assert kinds.count("probe") == 1
