"""Scaled data, scaled inputs, multi-sample targets and couplings, from the images to the images."""

import dataclasses

import numpy as np
import pytest
import torch

from flowtempo.cli.evaluate import evaluate
from flowtempo.cli.generate import generate_samples
from flowtempo.data import OptimalTransport, load
from flowtempo.densities import Uniform
from flowtempo.interpolants import Linear
from flowtempo.models import ModelConfig, UnitInputSiT
from flowtempo.objectives.targets import MultiSample
from flowtempo.timesteps import Proposal
from flowtempo.training import ObjectiveConfig, load_run, train
from flowtempo.training.batches import Batches


def changed(make_config, data=None, **changes):
    config = make_config(**changes)
    return dataclasses.replace(config, data=dataclasses.replace(config.data, **(data or {})))


OPTIONS = {
    "multi": {"objective": ObjectiveConfig(multi_sample="multi_sample(6, 0, 2)")},
    "coupled": {"objective": ObjectiveConfig(coupling="optimal_transport(4)")},
    "by_label": {"objective": ObjectiveConfig(coupling="optimal_transport_by_label(8)")},
    "unit": {
        "objective": ObjectiveConfig("variance_exploding", "v"),
        "model": ModelConfig("sit", "micro/4", unit_input=True),
    },
}


@pytest.mark.parametrize("name", OPTIONS)
def test_a_resumed_run_equals_one_that_was_not_stopped(make_config, tmp_path, name):
    config = changed(make_config, {"target_std": 0.7, "standardise": "channel"}, **OPTIONS[name])
    train(config, tmp_path / "whole")
    train(dataclasses.replace(config, steps=6), tmp_path / "parts")
    train(config, tmp_path / "parts", resume=True)
    whole, parts = load_run(tmp_path / "whole"), load_run(tmp_path / "parts")
    for a, b in zip(whole.model.parameters(), parts.model.parameters(), strict=True):
        assert torch.equal(a, b)
    assert isinstance(whole.model, UnitInputSiT) == (name == "unit")
    if name == "unit":
        assert whole.model.data_std == pytest.approx(0.7)


@pytest.mark.parametrize("name", ["multi", "coupled"])
def test_batches_do_not_depend_on_the_number_of_processes(make_config, name):
    data = load(make_config().data)
    options = {"multi": {"multi_sample": MultiSample(6)}, "coupled": {"coupling": OptimalTransport(8)}}[name]
    whole, halves = (
        [
            Batches(
                data,
                Proposal(Uniform()),
                batch_size=24,
                label_dropout=0.3,
                interpolant=Linear(),
                rank=rank,
                world_size=n,
                **options,
            ).at(7)
            for rank in range(n)
        ]
        for n in (1, 2)
    )
    plain = Batches(data, Proposal(Uniform()), batch_size=24, label_dropout=0.3).at(7)
    both = torch.cat([half.x0 for half in halves])
    torch.testing.assert_close(both, whole[0].x0)
    torch.testing.assert_close(torch.cat([half.x1 for half in halves]), whole[0].x1)
    assert not torch.equal(whole[0].x0, plain.x0)
    assert torch.equal(whole[0].y, plain.y)
    if name == "multi":
        torch.testing.assert_close(
            Linear().mix(whole[0].x1, whole[0].x0, plain.t), Linear().mix(plain.x1, plain.x0, plain.t)
        )


def test_images_come_out_in_their_own_units(make_config, tmp_path):
    """A model that is left at its zero output returns the noise of scaled data."""
    config = changed(make_config, {"target_std": 3.0}, steps=1)
    config = dataclasses.replace(config, optimizer=dataclasses.replace(config.optimizer, lr=1e-12))
    train(config, tmp_path / "run")
    run = load_run(tmp_path / "run")
    assert run.data["scaling"]["target_std"] == 3.0
    with np.load(generate_samples(str(tmp_path / "run"), count=200, step=None, track="raw", steps=2)) as file:
        images = file["arr_0"]
    noise = (images / 127.5 - 1).std()
    assert noise == pytest.approx(load(make_config().data).std / 3, rel=0.05)
    evaluate(str(tmp_path / "run"), features="pixels")
