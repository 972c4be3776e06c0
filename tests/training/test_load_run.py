import numpy as np
import pytest
import torch

from flowtempo.data import ArrayData, load
from flowtempo.errors import UserError
from flowtempo.models import ModelConfig
from flowtempo.training import load_run, save_config, train


@pytest.fixture(scope="module")
def run(make_config, tmp_path_factory):
    folder = tmp_path_factory.mktemp("loaded") / "run"
    train(make_config(steps=4, checkpoint_every=2), folder)
    return folder


def test_loads_the_newest_average_by_default(run, make_config):
    loaded = load_run(run)
    assert (loaded.step, loaded.track, loaded.shape, loaded.num_classes) == (4, "ema", (1, 8, 8), 3)
    assert loaded.objective == make_config().objective.build()
    assert loaded.data["fingerprint"] == load(make_config().data).fingerprint
    assert not loaded.model.training
    assert not any(p.requires_grad for p in loaded.model.parameters())
    raw, earlier = load_run(run, track="raw"), load_run(run, step=2)
    weight = "final_layer.linear.weight"
    tensors = [each.model.state_dict()[weight] for each in (loaded, raw, earlier)]
    assert earlier.step == 2
    assert not torch.equal(tensors[0], tensors[1])
    assert not torch.equal(tensors[0], tensors[2])


def test_other_data(run):
    loaded = load_run(run)
    grey = np.zeros((4, 1, 8, 8), dtype=np.uint8)
    labels = np.arange(4) % 3
    loaded.check_data(ArrayData(grey, labels, 3))
    with pytest.raises(
        UserError, match=r"takes 1-channel images of shape \(1, 8, 8\), but rgb has 3-channel"
    ):
        loaded.check_data(ArrayData(grey.repeat(3, axis=1), labels, 3, name="rgb"))
    with pytest.raises(UserError, match="knows 3 classes, but grey has 4"):
        loaded.check_data(ArrayData(grey, np.arange(4), 4, name="grey"))


def test_guidance_needs_a_trained_null_label(run, make_config, tmp_path):
    load_run(run).check_guidance(3.0)
    train(make_config(steps=1, label_dropout=0.0), tmp_path / "run")
    loaded = load_run(tmp_path / "run")
    loaded.check_guidance(1.0)
    with pytest.raises(UserError, match="label_dropout 0"):
        loaded.check_guidance(1.5)


def test_missing_and_damaged(run, tmp_path, make_config):
    with pytest.raises(UserError, match="no such run folder"):
        load_run(tmp_path / "missing")
    with pytest.raises(UserError, match=r"config.yaml: no such file"):
        load_run(tmp_path)
    save_config(make_config(), tmp_path / "config.yaml")
    with pytest.raises(UserError, match="no checkpoint there"):
        load_run(tmp_path)
    with pytest.raises(UserError, match="no checkpoint of step 3; there are 2, 4"):
        load_run(run, step=3)
    with pytest.raises(UserError, match="unknown track"):
        load_run(run, track="mean")


def test_weights_of_another_model(run, tmp_path, make_config):
    (tmp_path / "checkpoints").symlink_to(run / "checkpoints")
    save_config(make_config(model=ModelConfig(size="micro/2")), tmp_path / "config.yaml")
    with pytest.raises(UserError, match="weights are not those of the model micro/2"):
        load_run(tmp_path)


def test_checkpoint_cut_in_half(make_config, tmp_path):
    train(make_config(steps=1), tmp_path / "run")
    path = tmp_path / "run" / "checkpoints" / "step-00000001" / "ema.safetensors"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(UserError, match=r"ema.safetensors: damaged"):
        load_run(tmp_path / "run")
    load_run(tmp_path / "run", track="raw")
