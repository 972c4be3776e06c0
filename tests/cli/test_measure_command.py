"""`flowtempo measure` as a person uses it: stopped, resumed, in several processes, on odd data."""

import os
import signal
import socket
import subprocess
import sys
import time

import numpy as np
import pytest

from flowtempo.cli.main import main
from flowtempo.variance import Bracket

WORDS = ["measure", "--data.kind", "array", "--target_stderr", "0.002"]


@pytest.fixture(scope="module")
def latents(tmp_path_factory):
    """Enough work for some seconds."""
    path = tmp_path_factory.mktemp("data") / "latents.npy"
    draw = np.random.Generator(np.random.Philox(key=0))
    images = draw.standard_normal((1000, 4, 8, 8), dtype=np.float32)
    images *= 1 + draw.integers(0, 2, (1000, 1, 1, 1), dtype=np.int64).astype(np.float32)
    np.save(path, images)
    return path


def start(*words, **environment):
    return subprocess.Popen(
        [sys.executable, "-m", "flowtempo.cli.main", *map(str, words)],
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A suite that runs in the background ignores SIGINT, and what it starts would too.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def curves(path):
    loaded = Bracket.load(path)
    return [each.to_dict() for each in (loaded.lower, loaded.upper, *loaded.candidates)]


@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_a_stopped_command_goes_on(stop, latents, tmp_path, monkeypatch):
    words = [*WORDS, "--data.path", latents, "--output"]
    monkeypatch.setattr("flowtempo.variance.rounds._SECONDS_BETWEEN_SAVES", 0.0)
    whole, parts = tmp_path / "whole.json", tmp_path / "parts.json"
    partial = tmp_path / "parts.json.partial"
    process = start(*words, parts)
    while not partial.exists() and process.poll() is None:
        time.sleep(0.01)
    process.send_signal(stop)
    process.communicate()
    if process.returncode == 0:
        pytest.fail("it was done before it could be stopped: give it more work")
    assert process.returncode == (-9 if stop == signal.SIGKILL else 128 + stop)
    assert not parts.exists()
    for path in (parts, whole):
        process = start(*words, path)
        _, errors = process.communicate()
        assert process.returncode == 0, errors
    assert curves(parts) == curves(whole)
    assert not partial.exists()


def test_processes_give_the_numbers_of_one(latents, tmp_path):
    words = [*WORDS[:-1], "0.01", "--data.path", latents, "--output"]
    one, two = tmp_path / "one.json", tmp_path / "two.json"
    alone = start(*words, one)
    assert alone.wait() == 0
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    common = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    running = [start(*words, two, **common, RANK=str(rank), LOCAL_RANK=str(rank)) for rank in range(2)]
    outputs = [process.communicate() for process in running]
    assert [process.returncode for process in running] == [0, 0], outputs
    assert curves(one) == curves(two)
    assert "profile:" in outputs[0][0]
    assert outputs[1][0] == ""


def test_by_class_needs_labels(latents, tmp_path, capsys):
    output = tmp_path / "profile.json"
    assert main([*WORDS, "--data.path", str(latents), "--by-class", "--output", str(output)]) == 2
    assert "by_class has no effect" in capsys.readouterr().err
    words = ["measure", "digits", "--data.limit", "300", "--by-class", "--output", str(output)]
    assert main([*words, "--target-stderr", "0.05"]) == 0
    told = capsys.readouterr().out
    assert "by class" in told
    assert "Knowing the class" in told
    loaded = Bracket.load(output)
    assert loaded.by_class.upper.quantity == "class_posterior_variance"
    assert float(loaded.by_class.upper.mean[0]) < float(loaded.upper.mean[0])
    assert not list(tmp_path.glob("*.partial*"))


def test_sizes_are_measured_apart(tmp_path, capsys):
    """A latent cache with two sizes of images, as sd-scripts leaves it."""
    draw = np.random.Generator(np.random.Philox(key=1))
    cache = tmp_path / "cache"
    cache.mkdir()
    for index in range(30):
        height = 8 if index < 20 else 12
        latent = draw.standard_normal((16, height, 8), dtype=np.float32)
        np.savez(cache / f"{index}_{8 * height:04d}x0064_flux.npz", **{f"latents_{height}x8": latent})
    output = tmp_path / "profile.json"
    words = ["measure", "--data.kind", "sd-scripts", "--data.path", str(cache), "--output", str(output)]
    assert main([*words, "--target-stderr", "0.05"]) == 0
    assert "profile:" in capsys.readouterr().out
    upper = Bracket.load(output).upper
    assert upper.counts["points"] == 30
    assert [group["shape"] for group in upper.data["groups"].values()] == [[16, 8, 8], [16, 12, 8]]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--target_stderr", "2"], "target_stderr"),
        (["--queries", "5"], "queries = 5"),
        (["--noises", "0"], "noises"),
        (["--interpolant", "cosine"], "cosine"),
        (["--denoiser", "absent.json"], "absent.json"),
    ],
)
def test_mistakes_are_one_line(words, told, latents, tmp_path, capsys):
    output = tmp_path / "profile.json"
    assert (
        main([*WORDS, "--data.path", str(latents), "--data.limit", "40", "--output", str(output), *words])
        == 2
    )
    error = capsys.readouterr().err
    assert told in error
    assert error.count("\n") == 1
    assert not output.exists()


@pytest.mark.parametrize(
    ("images", "told"),
    [
        (np.full((20, 1, 2, 2), 3.0, np.float32), "does not vary"),
        (np.zeros((1, 1, 2, 2), np.float32), "at least 8 points"),
        (np.full((20, 1, 2, 2), np.nan, np.float32), "NaN"),
        (np.arange(80, dtype=np.int32).reshape(20, 1, 2, 2), "int32"),
    ],
)
def test_bad_data_is_one_line(images, told, tmp_path, capsys):
    np.save(tmp_path / "bad.npy", images)
    output = tmp_path / "profile.json"
    assert main([*WORDS, "--data.path", str(tmp_path / "bad.npy"), "--output", str(output)]) == 2
    error = capsys.readouterr().err
    assert told in error
    assert error.count("\n") == 1


def test_a_full_disk_loses_nothing(latents, tmp_path, capsys, monkeypatch):
    """The profile cannot be written: the work done so far stays, and the command goes on from it."""
    output = tmp_path / "profile.json"
    words = [*WORDS, "--data.path", str(latents), "--data.limit", "100", "--output", str(output)]

    def full(self, path):
        raise OSError(28, "No space left on device", str(path))

    with monkeypatch.context() as patched:
        patched.setattr(Bracket, "save", full)
        assert main(words) == 2
    assert "No space left on device" in capsys.readouterr().err
    assert (tmp_path / "profile.json.partial").exists()
    with monkeypatch.context() as patched:
        patched.setattr("flowtempo.variance.rounds.Rounds._compute", None)  # nothing is computed again
        assert main(words) == 0
    assert output.exists()
