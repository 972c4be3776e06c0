import dataclasses
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from flowtempo.data import DataConfig
from flowtempo.errors import UserError
from flowtempo.training import OptimizerConfig, TimestepConfig, save_config, train
from flowtempo.training import loop as loop_module
from flowtempo.training.config import to_dict
from flowtempo.training.step import TrainStep


def final(folder, step=10):
    return folder / "checkpoints" / f"step-{step:08d}"


def assert_same_state(one, two):
    """Bit-equal weights, averages, optimizer state and running sums."""
    for name in ("model.safetensors", "ema.safetensors"):
        a, b = load_file(one / name), load_file(two / name)
        assert a.keys() == b.keys()
        assert all(torch.equal(a[key], b[key]) for key in a)
    a, b = (torch.load(path / "optimizer.pt", weights_only=True) for path in (one, two))
    assert torch.equal(a["meters"], b["meters"])
    assert a["optimizer"]["param_groups"] == b["optimizer"]["param_groups"]
    for key, state in a["optimizer"]["state"].items():
        assert all(torch.equal(state[name], b["optimizer"]["state"][key][name]) for name in state)


def metrics(folder):
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key != "seconds"} for line in lines]


@pytest.fixture
def drawn(monkeypatch):
    """(step, times, first noise value) of every step that is trained, in order."""
    log = []
    original = TrainStep.__call__

    def recording(self, batch, step):
        log.append((step, batch.t.tolist(), float(batch.x0.flatten()[0])))
        return original(self, batch, step)

    monkeypatch.setattr(TrainStep, "__call__", recording)
    return log


@pytest.fixture(scope="module")
def uninterrupted(make_config, tmp_path_factory):
    folder = tmp_path_factory.mktemp("resume") / "whole"
    train(make_config(), folder)
    return folder


def stop_after(step, number):
    """A progress callback that sends a signal to this process once, after `step` of ten steps."""

    def progress(fraction):
        if round(fraction * 10) == step:
            signal.raise_signal(number)

    return progress


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_interrupted_and_resumed_is_bit_equal(make_config, tmp_path, uninterrupted, number, code):
    handlers = [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT)]
    first = train(make_config(), tmp_path / "run", progress=stop_after(5, number))
    assert (first.step, first.interrupted, first.exit_code) == (6, True, code)
    assert handlers == [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT)]
    second = train(make_config(), tmp_path / "run", resume=True)
    assert (second.step, second.exit_code) == (10, 0)
    assert_same_state(final(uninterrupted), final(tmp_path / "run"))
    # Not one line more or less: the log interval that was cut in two is whole again.
    assert metrics(tmp_path / "run") == metrics(uninterrupted)


def test_five_steps_and_five_more_are_ten(make_config, tmp_path, uninterrupted, drawn):
    train(make_config(), tmp_path / "whole")
    whole = drawn.copy()
    drawn.clear()
    train(make_config(steps=5), tmp_path / "run")
    train(make_config(), tmp_path / "run", resume=True)
    assert drawn == whole
    assert [step for step, *_ in drawn] == list(range(10))
    assert_same_state_but_meters(final(uninterrupted), final(tmp_path / "run"))
    assert len({tuple(times) for _, times, _ in drawn}) == 10
    drawn.clear()
    train(make_config(seed=1), tmp_path / "other")
    assert all(a[1] != b[1] and a[2] != b[2] for a, b in zip(whole, drawn, strict=True))


def assert_same_state_but_meters(one, two):
    """The end of the shorter run also ended a log interval, which the longer one did not."""
    for name in ("model.safetensors", "ema.safetensors"):
        assert (one / name).read_bytes() == (two / name).read_bytes()
    a, b = (torch.load(path / "optimizer.pt", weights_only=True)["optimizer"]["state"] for path in (one, two))
    assert all(torch.equal(a[key][name], b[key][name]) for key in a for name in a[key])


SCRIPT = """
import sys, time
import yaml
from pathlib import Path
from flowtempo.training import load_config, train

def slowly(fraction):
    print(fraction, flush=True)
    time.sleep(0.2)

sys.exit(train(load_config(Path(sys.argv[1])), sys.argv[2], progress=slowly).exit_code)
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGKILL, -9)])
def test_signal_to_another_process(make_config, tmp_path, uninterrupted, number, code):
    config = make_config(checkpoint_every=2, keep_checkpoints=1)
    save_config(config, tmp_path / "config.yaml")
    environment = {**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads())}
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(tmp_path / "config.yaml"), str(tmp_path / "run")],
        stdout=subprocess.PIPE,
        env=environment,
        text=True,
    )
    assert process.stdout is not None
    for _ in range(5):
        assert process.stdout.readline()
    process.send_signal(number)
    process.stdout.read()
    assert process.wait() == code
    # What a process that was killed at its worst moment leaves.
    (tmp_path / "run" / "checkpoints" / ".step-00000006.xyz").mkdir()
    with open(tmp_path / "run" / "metrics.jsonl", "a") as file:
        file.write('{"kind": "train", "step": 9, "loss": 0}\n{"kind": "tra')
    assert train(config, tmp_path / "run", resume=True).step == 10
    assert_same_state(final(uninterrupted), final(tmp_path / "run"))
    assert metrics(tmp_path / "run") == metrics(uninterrupted)
    assert [p.name for p in (tmp_path / "run" / "checkpoints").iterdir()] == ["step-00000010"]


def test_stopped_before_the_first_checkpoint_starts_anew(make_config, tmp_path, uninterrupted, monkeypatch):
    def fail(*arguments, **keywords):
        raise RuntimeError("power cut")

    monkeypatch.setattr(loop_module.checkpoint, "save", fail)
    with pytest.raises(RuntimeError, match="power cut"):
        train(make_config(), tmp_path / "run")
    monkeypatch.undo()
    train(make_config(), tmp_path / "run", resume=True)
    assert metrics(tmp_path / "run") == metrics(uninterrupted)
    assert_same_state(final(uninterrupted), final(tmp_path / "run"))


def test_resuming_a_finished_run_does_nothing(make_config, tmp_path, drawn):
    train(make_config(), tmp_path / "run")
    before, lines = final(tmp_path / "run").stat(), metrics(tmp_path / "run")
    drawn.clear()
    assert train(make_config(), tmp_path / "run", resume=True).step == 10
    assert drawn == []
    assert final(tmp_path / "run").stat() == before
    assert metrics(tmp_path / "run") == lines


def test_second_signal_does_not_wait(make_config, tmp_path):
    # A shell lets what it starts in the background ignore Ctrl-C.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)

    def twice(fraction):
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    try:
        with pytest.raises(KeyboardInterrupt):
            train(make_config(), tmp_path / "run", progress=twice)
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="module")
def half(make_config, tmp_path_factory):
    folder = tmp_path_factory.mktemp("half") / "run"
    train(make_config(steps=2), folder)
    return folder


def test_changed_settings_are_named(make_config, half):
    changed = make_config(seed=4, optimizer=OptimizerConfig(lr=1.0))
    with pytest.raises(UserError, match=r"started with other settings: optimizer.lr .*, seed \(0 -> 4\)"):
        train(changed, half, resume=True)


def test_changed_data_are_named(make_config, tmp_path, images_file):
    with np.load(images_file) as file:
        images, labels = file["images"], file["labels"]
    path = tmp_path / "mine.npz"
    np.savez(path, images=images, labels=labels)
    config = make_config(steps=1, data=DataConfig(kind="array", path=str(path)))
    train(config, tmp_path / "run")
    longer = dataclasses.replace(config, steps=2)
    np.savez(path, images=255 - images, labels=labels)
    with pytest.raises(UserError, match=r"but the data is now .*resume with the same data"):
        train(longer, tmp_path / "run", resume=True)
    np.savez(path, images=images.repeat(3, axis=1), labels=labels)
    with pytest.raises(
        UserError, match=r"takes 1-channel images .* has 3-channel images of shape \(3, 8, 8\)"
    ):
        train(longer, tmp_path / "run", resume=True)


def test_changed_density_file_is_named(make_config, tmp_path):
    path = tmp_path / "density.json"

    def write(pdf):
        path.write_text(json.dumps({"schema": 1, "table": {"t": [0.0, 0.5, 1.0], "pdf": pdf}}))

    write([1.0, 2.0, 1.0])
    config = make_config(steps=1, timesteps=TimestepConfig(str(path)))
    train(config, tmp_path / "run")
    write([2.0, 1.0, 1.0])
    with pytest.raises(UserError, match=r"density file .* has changed"):
        train(dataclasses.replace(config, steps=2), tmp_path / "run", resume=True)


def test_fewer_steps_than_are_done(make_config, half):
    with pytest.raises(UserError, match=r"steps is 1, but .* has already done 2"):
        train(make_config(steps=1), half, resume=True)


def test_nothing_to_resume(make_config, tmp_path):
    for folder in (tmp_path / "missing", tmp_path):
        with pytest.raises(UserError, match="nothing to resume"):
            train(make_config(), folder, resume=True)


def test_damaged_newest_checkpoint_is_named_and_the_one_before_serves(make_config, tmp_path, uninterrupted):
    train(make_config(steps=8, checkpoint_every=4, log_every=4), tmp_path / "run")
    folder = final(tmp_path / "run", 8)
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UserError, match=r"step-00000008/model.safetensors: damaged.*delete the folder"):
        train(make_config(), tmp_path / "run", resume=True)
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()
    train(make_config(), tmp_path / "run", resume=True)
    assert_same_state(final(uninterrupted), final(tmp_path / "run"))


def test_config_file_follows_the_extension(make_config, tmp_path):
    train(make_config(steps=1), tmp_path / "run")
    train(make_config(steps=2), tmp_path / "run", resume=True)
    import yaml

    content = yaml.safe_load(Path(tmp_path / "run" / "config.yaml").read_text())
    assert content == {**to_dict(make_config(steps=2)), "compile": False}
