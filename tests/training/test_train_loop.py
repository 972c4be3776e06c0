import json

import numpy as np
import pytest
import torch
import yaml

from flowtempo.data import DataConfig
from flowtempo.errors import UserError
from flowtempo.models import ModelConfig
from flowtempo.training import ObjectiveConfig, TimestepConfig, load_run, train
from flowtempo.training.config import to_dict


def records(folder, kind=None):
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if kind in (None, line["kind"])]


@pytest.fixture(scope="module")
def finished(make_config, tmp_path_factory):
    """A run of ten steps: folder, result, and what was told on the way."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    told, progress = [], []
    config = make_config(objective=ObjectiveConfig(direction=0.5), checkpoint_every=4)
    result = train(config, folder, callback=told.append, progress=progress.append)
    return folder, result, told, progress, config


def test_run_folder(finished):
    folder, result, _, _, config = finished
    assert sorted(path.name for path in folder.iterdir()) == [
        "checkpoints",
        "config.yaml",
        "metrics.jsonl",
        "tensorboard",
    ]
    names = sorted(path.name for path in (folder / "checkpoints").iterdir())
    assert names == ["step-00000004", "step-00000008", "step-00000010"]
    assert yaml.safe_load((folder / "config.yaml").read_text()) == {**to_dict(config), "compile": False}
    assert (result.step, result.interrupted, result.exit_code) == (10, False, 0)


def test_metrics(finished):
    folder, result, *_ = finished
    train_lines = records(folder, "train")
    assert [line["step"] for line in train_lines] == [4, 8, 10]
    keys = "kind step loss unweighted mse direction grad_norm skipped lr seconds images"
    assert all(list(line) == keys.split() for line in train_lines)
    assert [line["images"] for line in train_lines] == [32, 64, 80]
    assert train_lines[-1]["lr"] == 1e-3
    assert train_lines[0]["seconds"] < train_lines[-1]["seconds"]
    reference = records(folder, "reference")
    assert [(line["step"], line["track"]) for line in reference] == [
        (step, track) for step in (0, 5, 10) for track in ("raw", "ema")
    ]
    assert all(len(line["bands"]) == 10 for line in reference)
    # The untrained output is 0, so that the loss is E|u|^2 plus half of 1 for the direction.
    assert reference[0]["loss"] == reference[1]["loss"]
    assert reference[-2]["loss"] < reference[0]["loss"]
    assert result.reference == {line["track"]: line["loss"] for line in reference[-2:]}


def test_header_says_what_is_optimised_and_where_times_are_drawn(finished):
    folder, *_ = finished
    (header,) = records(folder, "header")
    proposal = header["proposal"]
    assert (proposal["target"], proposal["spacing"]) == ("uniform", "stratified")
    assert proposal["density"].startswith("mixture(logit_normal(-0.75, 1)")
    assert sum(band["density"] for band in proposal["bands"]) == pytest.approx(1)
    assert header["data"]["shape"] == [1, 8, 8]
    assert header["num_classes"] == 3
    assert header["model"]["parameters"] == sum(p.numel() for p in load_run(folder).model.parameters())
    assert header["epochs"] == pytest.approx(10 * 8 / 50)


def test_callback_hears_every_record_and_checkpoint(finished):
    folder, _, told, progress, _ = finished
    assert [record for record in told if record["kind"] not in ("checkpoint", "begin")] == records(folder)
    assert [record["step"] for record in told if record["kind"] == "checkpoint"] == [4, 8, 10]
    begun = [record["step"] for record in told if record["kind"] == "begin"]
    assert begun == [record["step"] for record in records(folder, "reference")][::2]
    assert progress == pytest.approx([k / 10 for k in range(1, 11)])


def test_reference_loss_ignores_how_the_run_draws_its_times(make_config, tmp_path):
    one = make_config(steps=1)
    others = [
        make_config(steps=1, timesteps=TimestepConfig("logit_normal(0, 1)"), batch_size=4, seed=5),
        make_config(steps=1, precision="bf16", accumulate=1),
    ]
    train(one, tmp_path / "a")
    for name, config in zip("bc", others, strict=True):
        train(config, tmp_path / name)
        # Before the first step every model outputs 0.
        assert records(tmp_path / name, "reference")[0] == records(tmp_path / "a", "reference")[0]


def test_reference_on_other_data(make_config, tmp_path):
    held_out = tmp_path / "held_out.npz"
    np.savez(held_out, images=np.zeros((5, 1, 8, 8), dtype=np.uint8), labels=np.arange(5) % 3)
    config = make_config(steps=1, reference_data=DataConfig(kind="array", path=str(held_out)))
    train(config, tmp_path / "run")
    (header,) = records(tmp_path / "run", "header")
    assert header["reference"]["images"] == 5
    # Data of -1 everywhere and an output of 0: E|u|^2 = 1 + 1.
    assert records(tmp_path / "run", "reference")[0]["loss"] == pytest.approx(2, abs=0.2)


def test_unlabelled_data_and_kept_checkpoints(make_config, tmp_path):
    path = tmp_path / "plain.npy"
    np.save(path, np.zeros((9, 3, 8, 8), dtype=np.uint8))
    data = DataConfig(kind="array", path=str(path))
    config = make_config(
        data=data, label_dropout=None, steps=4, checkpoint_every=1, keep_checkpoints=2, batch_size=2
    )
    train(config, tmp_path / "run")
    assert sorted(p.name for p in (tmp_path / "run" / "checkpoints").iterdir()) == [
        "step-00000003",
        "step-00000004",
    ]
    assert load_run(tmp_path / "run").config.label_dropout == 0.0
    with pytest.raises(UserError, match=r"label_dropout is 0.3 but .* has no labels"):
        train(make_config(data=data), tmp_path / "other")


def test_training_lowers_both_losses(make_config, tmp_path):
    result = train(make_config(steps=40, ema_decay=0.5), tmp_path / "run")
    first = records(tmp_path / "run", "reference")[0]["loss"]
    assert result.reference["raw"] < 0.95 * first
    assert result.reference["ema"] < 0.95 * first
    assert result.reference["ema"] != result.reference["raw"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"steps": 0}, "steps is 0"),
        ({"model": ModelConfig(size="micro/4", channels=3)}, "model.channels is 3 .*1-channel"),
        ({"model": ModelConfig(size="micro/3")}, "unknown model size"),
        ({"timesteps": TimestepConfig("log_normal(0, 1)")}, "log_normal"),
        ({"objective": ObjectiveConfig(interpolant="cubic")}, "unknown interpolant 'cubic'"),
        ({"batch_size": 9}, "batch_size 9 cannot be shared equally"),
        ({"data": DataConfig(kind="array", path="/nowhere/x.npy")}, "/nowhere/x.npy"),
    ],
)
def test_mistakes_make_no_folder(make_config, tmp_path, changes, message):
    with pytest.raises((UserError, FileNotFoundError), match=message):
        train(make_config(**changes), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_only_an_empty_folder_is_started_in(make_config, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match="is not empty: continue that run with --resume"):
        train(make_config(), tmp_path / "run")
    with pytest.raises(UserError, match="is a file"):
        train(make_config(), tmp_path / "run" / "notes.txt")
    assert [p.name for p in (tmp_path / "run").iterdir()] == ["notes.txt"]


@pytest.mark.slow
def test_compiled_network_trains_alike_and_saves_plain_names(make_config, tmp_path):
    train(make_config(steps=3), tmp_path / "plain")
    train(make_config(steps=3, compile=True), tmp_path / "compiled")
    plain, compiled = (load_run(tmp_path / name, track="raw").model for name in ("plain", "compiled"))
    for a, b in zip(plain.parameters(), compiled.parameters(), strict=True):
        torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-3)
