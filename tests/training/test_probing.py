import dataclasses
import json
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from flowtempo.data import ArrayData, DataConfig, load
from flowtempo.errors import UserError
from flowtempo.training import ProbeSet, load_config, load_run, train
from flowtempo.training import loop as loop_module
from flowtempo.training.checkpoint import Checkpoint, prune
from flowtempo.variance import Probe

FILES = ("model.safetensors", "ema.safetensors", "optimizer.pt")


@pytest.fixture(autouse=True)
def few_times(monkeypatch):
    monkeypatch.setattr(loop_module, "_PROBE_TIMES", 2)


@pytest.fixture(scope="module")
def make(make_config):
    def config(**changes):
        return make_config(probe_every=5, probe_images=8, **changes)

    return config


@pytest.fixture(scope="module")
def probed(make, tmp_path_factory):
    folder = tmp_path_factory.mktemp("probing") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop_module, "_PROBE_TIMES", 2)
        train(make(), folder)
    return folder


def lines(folder, *kinds):
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [
        {key: value for key, value in record.items() if key != "seconds"}
        for record in records
        if not kinds or record["kind"] in kinds
    ]


def probes(folder):
    return {int(path.stem[5:]): path.read_bytes() for path in (folder / "probes").iterdir()}


def test_probing_changes_nothing_that_is_trained(make_config, probed, tmp_path):
    train(make_config(), tmp_path / "plain")
    one, two = (folder / "checkpoints" / "step-00000010" for folder in (probed, tmp_path / "plain"))
    for name in FILES[:2]:
        a, b = load_file(one / name), load_file(two / name)
        assert all(torch.equal(a[key], b[key]) for key in a | b)
    assert (one / FILES[2]).read_bytes() == (two / FILES[2]).read_bytes()
    assert lines(probed, "header", "train", "reference") == lines(tmp_path / "plain")


def test_probes_are_of_the_last_weights_at_their_step(make, probed, tmp_path, images_file):
    records = lines(probed, "probe")
    assert [record["step"] for record in records] == [5, 10]
    assert sorted(probes(probed)) == [5, 10]
    record = records[-1]
    stored = Probe.load(probed / record["path"])
    assert stored.profiles["loss"].model["track"] == record["track"] == "raw"
    assert (stored.profiles["loss"].model["step"], stored.profiles["loss"].counts["samples"]) == (10, 8)
    loaded = load_run(probed, track="raw")
    data = load(loaded.config.data)
    loaded.model.requires_grad_(True)
    again = ProbeSet(data, 8, data).probe(loaded.model, loaded.objective, times=2)
    for quantity, profile in stored.profiles.items():
        torch.testing.assert_close(again.profiles[quantity].mean, profile.mean, rtol=1e-9, atol=0)
        # The mean over uniform t of two points is the mean of the two.
        assert record[quantity] == pytest.approx(float(profile.mean.mean()), rel=1e-12)
    averaged = load_run(probed).model.requires_grad_(True)
    other = ProbeSet(data, 8, data).probe(averaged, loaded.objective, times=2)
    assert not torch.allclose(other.profiles["loss"].mean, stored.profiles["loss"].mean)


def test_tensorboard_shows_the_means(probed):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(probed / "tensorboard"))
    events.Reload()
    shown = {event.step: event.value for event in events.Scalars("probe/raw/gradient_second_moment")}
    told = {record["step"]: record["gradient_second_moment"] for record in lines(probed, "probe")}
    assert shown == pytest.approx(told)


class PowerCut(Exception):
    pass


def killed_after(step):
    def callback(record):
        if record["kind"] == "probe" and record["step"] == step:
            raise PowerCut

    return callback


def test_a_run_that_was_killed_is_probed_once_at_each_step(make, probed, tmp_path):
    with pytest.raises(PowerCut):
        train(make(checkpoint_every=4), tmp_path / "run", callback=killed_after(5))
    assert sorted(probes(tmp_path / "run")) == [5]
    train(make(checkpoint_every=4), tmp_path / "run", resume=True)
    assert lines(tmp_path / "run") == lines(probed)
    assert sorted(probes(tmp_path / "run")) == sorted(probes(probed))


def test_how_often_is_probed_may_change_on_resuming(make_config, probed, tmp_path, monkeypatch):
    stored = Probe.load(probed / "probes" / "step-00000005.json")
    monkeypatch.setattr(ProbeSet, "probe", lambda *arguments, **keywords: stored)
    config = make_config(probe_every=3, probe_images=8, checkpoint_every=4)
    with pytest.raises(PowerCut):
        train(config, tmp_path / "run", callback=killed_after(6))
    changed = dataclasses.replace(config, steps=8, probe_every=7, probe_images=9)
    train(changed, tmp_path / "run", resume=True)
    # That of step 6 was of steps that were done again, and is of no line.
    assert sorted(probes(tmp_path / "run")) == [3, 7, 8]
    assert [record["step"] for record in lines(tmp_path / "run", "probe")] == [3, 7, 8]
    assert load_config(tmp_path / "run" / "config.yaml").probe_every == 7
    train(make_config(steps=9, checkpoint_every=4), tmp_path / "run", resume=True)
    assert [record["step"] for record in lines(tmp_path / "run", "probe")] == [3, 7, 8]


def test_time_of_probing_is_not_training_time(make, tmp_path, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(loop_module.time, "perf_counter", lambda: now[0])

    def slow(*arguments, **keywords):
        now[0] += 1000
        raise UserError("the loss is not finite at t = 0.5")

    monkeypatch.setattr(ProbeSet, "probe", slow)
    result = train(make(), tmp_path / "run")
    assert result.step == 10
    last = json.loads((tmp_path / "run" / "checkpoints" / "step-00000010" / "state.json").read_text())
    assert last["seconds"] == 0


def test_a_probe_that_fails_does_not_end_the_run(make, probed, tmp_path, monkeypatch):
    def diverged(*arguments, **keywords):
        raise UserError("the loss is not finite at t = 0.5")

    monkeypatch.setattr(ProbeSet, "probe", diverged)
    assert train(make(), tmp_path / "run").step == 10
    first = lines(tmp_path / "run", "probe")[0]
    assert (first["path"], first["error"]) == (None, "the loss is not finite at t = 0.5")
    assert lines(tmp_path / "run", "train") == lines(probed, "train")


def test_reference_data_are_probed_and_bound_the_variance_if_held_out(make, tmp_path, images_file):
    with np.load(images_file) as file:
        images, labels = 255 - file["images"], file["labels"]
    np.savez(tmp_path / "other.npz", images=images, labels=labels)
    other = DataConfig(kind="array", path=str(tmp_path / "other.npz"))
    train(make(steps=1, reference_data=other), tmp_path / "run")
    probe = Probe.load(tmp_path / "run" / "probes" / "step-00000001.json")
    assert probe.profiles["loss"].data["fingerprint"] == load(other).fingerprint
    assert probe.profiles["loss"].data["held_out"] is True
    assert probe.denoiser is not None
    assert probe.denoiser.quantity == "class_posterior_variance"


def test_training_images_bound_nothing(probed):
    probe = Probe.load(probed / "probes" / "step-00000010.json")
    assert probe.denoiser is None
    assert probe.profiles["loss"].data["held_out"] is False


def array(images, labels=None):
    return ArrayData(images, labels, 0 if labels is None else int(labels.max()) + 1)


def test_images_seen_in_training_are_found_whatever_their_order_and_number():
    random = np.random.default_rng(0)
    images = random.integers(0, 256, (40, 1, 4, 4), dtype=np.uint8)
    training = array(images)
    assert ProbeSet(training, 10, training).seen == 10
    assert ProbeSet(array(images[::-1].copy()), 10, training).seen == 10
    assert ProbeSet(array(255 - images), 10, training).seen == 0
    mixed = 255 - images
    few = ProbeSet(array(mixed), 10, training)
    mixed[few.indices[:3]] = images[5:8]
    assert ProbeSet(array(mixed), 10, training).seen == 3
    assert not ProbeSet(array(mixed), 10, training).held_out
    assert ProbeSet(array(mixed), 10, None).seen is None
    assert not ProbeSet(array(mixed), 10, None).held_out


def test_the_same_images_are_chosen_every_time_and_fewer_are_part_of_more():
    data = array(np.arange(640, dtype=np.float32).reshape(40, 1, 4, 4), np.arange(40) % 4)
    many, few = ProbeSet(data, 20, data), ProbeSet(data, 8, data)
    assert few.indices.tolist() == many.indices[:8].tolist()
    assert len(many.indices.unique()) == 20
    x1, y = few.batch(torch.tensor([2, 0]))
    row = int(few.indices[2])
    assert torch.equal(x1[0], torch.from_numpy(data.images[row]))
    assert int(y[0]) == row % 4
    given = ProbeSet(data, 8, None, condition=torch.arange(40)).batch(torch.tensor([2, 0]))
    assert given[1].tolist() == few.indices[[2, 0]].tolist()


@pytest.mark.parametrize("count", [7, 41])
def test_numbers_of_images_that_cannot_be_probed(count):
    data = array(np.zeros((40, 1, 4, 4), np.uint8))
    with pytest.raises(UserError, match=f"{count} images to probe: there must be 8 to 40"):
        ProbeSet(data, count, data)


def test_settings_that_mean_nothing(make_config, tmp_path):
    for changes, told in [
        ({"probe_every": 0}, "probe_every is 0"),
        ({"probe_images": 8}, "probe_images is 8, which has no effect without probe_every"),
        ({"probe_every": 1, "probe_images": 4}, "4 images to probe"),
    ]:
        with pytest.raises(UserError, match=told):
            train(make_config(**changes), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_checkpoint_that_training_removes_is_followed_by_the_newer_one(probed, tmp_path, monkeypatch):
    original, first = Checkpoint.weights, []

    def removed(self, track):
        if not first:
            first.append(self.step)
            newer = self.folder.with_name("step-00000011")
            state = json.loads((self.folder / "state.json").read_text()) | {"step": 11}
            self.folder.rename(newer)
            (newer / "state.json").write_text(json.dumps(state))
        return original(self, track)

    shutil.copytree(probed, tmp_path / "run")
    prune(tmp_path / "run" / "checkpoints", 1)
    monkeypatch.setattr(Checkpoint, "weights", removed)
    assert load_run(tmp_path / "run").step == 11
    assert first == [10]
    with pytest.raises(UserError, match="no checkpoint of step 10; there are 11"):
        load_run(tmp_path / "run", step=10)
