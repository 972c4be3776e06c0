"""Runs whose densities follow what they measure, and what else belongs to the objective's estimate."""

import dataclasses
import json

import pytest
import torch

from flowtempo.errors import UserError
from flowtempo.training import ObjectiveConfig, TimestepConfig, load_run, save_config, train
from flowtempo.training.config import check
from flowtempo.training.step import TrainStep

ADAPTIVE = {
    "loss": {"timesteps": TimestepConfig(adaptive="loss_second_moment(8)", spacing="stratified")},
    "loss moved": {"timesteps": TimestepConfig(adaptive="loss_second_moment(8)", moves_objective=True)},
    "gradient": {
        "timesteps": TimestepConfig(adaptive="gradient_second_moment(8)"),
        "probe_every": 4,
        "probe_images": 8,
    },
    "curriculum": {
        "timesteps": TimestepConfig(
            curriculum="switch(logit_normal(-0.75, 1), uniform, 0.35)", moves_objective=True
        )
    },
    "uncertainty": {"objective": ObjectiveConfig(learned_uncertainty=True, weighting="min_snr(5)")},
}


def records(folder, kind):
    lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [line for line in lines if line["kind"] == kind]


def saved(folder, step=10):
    return torch.load(folder / f"checkpoints/step-{step:08d}/optimizer.pt", weights_only=True)


@pytest.fixture
def times(monkeypatch):
    """Times and weights of every step that is trained, in order."""
    log = []
    original = TrainStep.__call__

    def recording(self, batch, step):
        log.append((step, batch.t.clone(), batch.weight.clone()))
        return original(self, batch, step)

    monkeypatch.setattr(TrainStep, "__call__", recording)
    return log


@pytest.mark.parametrize("name", ADAPTIVE)
def test_a_resumed_run_equals_one_that_was_not_stopped(make_config, tmp_path, times, name):
    config = make_config(checkpoint_every=1, **ADAPTIVE[name])
    train(config, tmp_path / "whole")
    whole = list(times)
    times.clear()
    # Every checkpoint holds what is not yet in use. A curriculum's length cannot change.
    stops = {"curriculum": (10,), "gradient": (5, 10)}
    for stop in stops.get(name, (1, 4, 5, 10)):
        train(
            dataclasses.replace(config, steps=stop), tmp_path / "parts", resume=(tmp_path / "parts").exists()
        )
    for (step, t, weight), (again, other_t, other_weight) in zip(whole, times, strict=True):
        assert step == again
        assert torch.equal(t, other_t)
        assert torch.equal(weight, other_weight)
    one, two = load_run(tmp_path / "whole").model, load_run(tmp_path / "parts").model
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))


@pytest.mark.parametrize("name", ["loss", "loss moved", "gradient"])
def test_the_density_moves_and_is_on_record(make_config, tmp_path, times, name):
    train(make_config(**ADAPTIVE[name]), tmp_path / "run")
    header = records(tmp_path / "run", "header")[0]["proposal"]
    assert header["adaptive"].startswith(name.split()[0])
    assert header["density"] == "uniform"
    lines = records(tmp_path / "run", "train")
    last = lines[-1]["proposal"]
    assert [band["density"] for band in last["bands"]] != pytest.approx([0.1] * 10, abs=1e-3)
    weights = torch.cat([weight for _, _, weight in times])
    assert bool((weights == 1).all()) == (name == "loss moved")
    assert "adaptive" in saved(tmp_path / "run")


def test_a_plain_run_writes_no_more_than_before(make_config, tmp_path):
    train(make_config(), tmp_path / "run")
    assert set(saved(tmp_path / "run")) == {"optimizer", "meters"}
    assert "proposal" not in records(tmp_path / "run", "train")[0]


def test_a_curriculum_is_drawn_as_it_says(make_config, tmp_path, times):
    train(make_config(batch_size=400, accumulate=1, **ADAPTIVE["curriculum"]), tmp_path / "run")
    means = [float(t.mean()) for _, t, _ in times]
    assert max(means[:4]) < 0.4 < 0.44 < min(means[4:])
    bands = [line["proposal"]["density"] for line in records(tmp_path / "run", "train")]
    assert bands[-1] == "uniform"


def test_what_is_learned_moves_and_the_logged_loss_is_the_one_optimised(make_config, tmp_path):
    train(make_config(**ADAPTIVE["uncertainty"]), tmp_path / "run")
    assert saved(tmp_path / "run")["uncertainty"]["weight"].abs().sum() > 0
    line = records(tmp_path / "run", "train")[0]
    assert line["loss"] != line["unweighted"] != line["mse"]


def test_the_reference_loss_knows_no_weighting(make_config, tmp_path):
    losses = []
    for name, weighting in (("plain", None), ("weighted", "min_snr(5)")):
        train(make_config(steps=1, objective=ObjectiveConfig(weighting=weighting)), tmp_path / name)
        losses.append(records(tmp_path / name, "reference")[0]["loss"])
    assert losses[0] == losses[1]


def test_two_processes_agree_on_the_density(make_config, tmp_path):
    from test_two_processes import launch

    for name in ("loss", "uncertainty"):
        config = make_config(steps=5, **ADAPTIVE[name])
        save_config(config, tmp_path / "config.yaml")
        train(config, tmp_path / f"{name} one")
        launch(tmp_path / "config.yaml", tmp_path / f"{name} two", 2)
        one, two = (saved(tmp_path / f"{name} {n}", 5) for n in ("one", "two"))
        if name == "loss":
            torch.testing.assert_close(one["adaptive"]["state"], two["adaptive"]["state"], rtol=1e-4, atol=0)
            halves = [torch.load(tmp_path / f"loss two-rank{r}.pt", weights_only=True)[0] for r in range(2)]
            drawn = torch.cat(halves, 1).sort(1).values
            # Stratified over both: they drew from one density.
            whole = config.timesteps.build(5)
            whole.load_state_dict(two["adaptive"])
            parts = (whole.at(4).density.cdf(drawn[4]) * 8).long()
            assert parts.tolist() == list(range(8))
        else:
            weights = [each["uncertainty"]["weight"] for each in (one, two)]
            torch.testing.assert_close(*weights, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"timesteps": TimestepConfig(adaptive="second")}, "unknown adaptation 'second'"),
        ({"timesteps": TimestepConfig(curriculum="linear")}, "unknown curriculum 'linear'"),
        ({"timesteps": TimestepConfig(adaptive="gradient_second_moment")}, "set probe_every"),
        ({"timesteps": TimestepConfig(density="cosmap", adaptive="loss_second_moment")}, "leave one out"),
        ({"timesteps": TimestepConfig(curriculum="clts", adaptive="loss_second_moment")}, "leave one out"),
        ({"timesteps": TimestepConfig(moves_objective=True)}, "moves_objective has no effect"),
        (
            {"timesteps": TimestepConfig(target="cosmap", curriculum="clts", moves_objective=True)},
            "target cosmap has no effect",
        ),
        ({"objective": ObjectiveConfig(weighting="min")}, "unknown weighting 'min'"),
        ({"objective": ObjectiveConfig(interpolant="lin")}, "unknown interpolant 'lin'"),
        (
            {
                "objective": ObjectiveConfig("shifted(linear, 3)"),
                "timesteps": TimestepConfig("shifted(cosmap, 3)"),
            },
            "a shift is applied once",
        ),
        (
            {"objective": ObjectiveConfig(multi_sample="multi_sample", coupling="optimal_transport")},
            "exclude each other",
        ),
    ],
)
def test_settings_that_exclude_each_other_or_have_no_effect(make_config, changes, message):
    with pytest.raises(UserError, match=message):
        check(make_config(**changes))


def test_a_curriculum_cannot_be_resumed_for_more_steps(make_config, tmp_path):
    config = make_config(**ADAPTIVE["curriculum"])
    train(config, tmp_path / "run")
    with pytest.raises(UserError, match="its curriculum depends on"):
        train(dataclasses.replace(config, steps=20), tmp_path / "run", resume=True)


def test_a_coupling_by_label_needs_labels(make_config, tmp_path):
    import numpy as np

    np.savez(tmp_path / "plain.npz", images=np.zeros((20, 1, 8, 8), np.uint8))
    config = make_config(label_dropout=None, objective=ObjectiveConfig(coupling="optimal_transport_by_label"))
    config = dataclasses.replace(
        config, data=dataclasses.replace(config.data, path=str(tmp_path / "plain.npz"))
    )
    with pytest.raises(UserError, match="has no labels: use optimal_transport"):
        train(config, tmp_path / "run")
