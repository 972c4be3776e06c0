import dataclasses

import pytest
from jsonargparse import ArgumentParser
from jsonargparse._typehints import ActionTypeHint as _ActionTypeHint

from flowtempo.data import DataConfig
from flowtempo.errors import UserError
from flowtempo.training import OptimizerConfig, TimestepConfig, TrainConfig, load_config, save_config
from flowtempo.training.config import check, check_resumable


@pytest.mark.parametrize(
    "config",
    [
        TrainConfig(),
        TrainConfig(
            reference_data=DataConfig(split="test"),
            timesteps=TimestepConfig("logit_normal(-0.75, 1)", "uniform", "stratified"),
            optimizer=OptimizerConfig(betas=(0.9, 0.95), clip_norm=1.0, lr_schedule="cosine"),
            keep_checkpoints=3,
            precision="bf16",
            compile=True,
        ),
    ],
)
def test_yaml_round_trip(tmp_path, config):
    save_config(config, tmp_path / "config.yaml")
    assert load_config(tmp_path / "config.yaml") == config


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("stepz: 3", "stepz"),
        ("optimizer: {lr: fast}", "optimizer.lr"),
        ("precision: fp8", "precision"),
        ("[1, 2]", "expected keys and values, found list"),
        ("steps: [", "config.yaml"),
        ("\0", "config.yaml"),
        ("data: 3", "data must be keys and values, found 3"),
        ("optimizer: [1]", "optimizer must be keys and values"),
        ("timesteps: null", "timesteps must be keys and values"),
        ("1: 2", "must be a string"),
        ("data: &d {x: *d}", "Circular"),
        ("steps: " + "[" * 3000, "nested too deeply"),
    ],
)
def test_bad_files_are_named_with_the_key(tmp_path, text, message):
    path = tmp_path / "config.yaml"
    path.write_text(text)
    with pytest.raises(UserError, match=message) as caught:
        load_config(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_file(tmp_path):
    with pytest.raises(UserError, match="no such file"):
        load_config(tmp_path / "config.yaml")


def test_every_option_is_explained_on_the_command_line():
    parser = ArgumentParser()
    parser.add_class_arguments(TrainConfig, nested_key=None)
    undocumented = [
        action.dest
        for action in parser._actions
        if isinstance(action, _ActionTypeHint) and not (action.help or "").split("(type:")[0].strip()
    ]
    assert undocumented == []
    text = " ".join(parser.format_help().split())
    for phrase in (
        "after warm-up",
        "over all processes",
        "puts one draw",
        "Coefficient of the velocity-direction",
    ):
        assert phrase in text


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"steps": 0}, "steps is 0"),
        ({"batch_size": -8}, "batch_size is -8"),
        ({"keep_checkpoints": 0}, "keep_checkpoints is 0"),
        ({"seed": -1}, "seed is -1"),
        ({"seed": 2**64}, "seed is 18446744073709551616"),
        ({"batch_size": 2**24 + 1}, "batch_size is 16777217"),
        ({"label_dropout": 1.5}, "label_dropout is 1.5"),
        ({"ema_decay": 1.0}, "ema_decay is 1.0"),
        ({"optimizer": OptimizerConfig(lr=0.0)}, "optimizer.lr is 0.0"),
        ({"optimizer": OptimizerConfig(lr=float("nan"))}, "optimizer.lr is nan"),
        ({"optimizer": OptimizerConfig(betas=(0.9, 1.0))}, "optimizer.betas"),
        ({"optimizer": OptimizerConfig(weight_decay=-1.0)}, "optimizer.weight_decay"),
        ({"optimizer": OptimizerConfig(warmup_steps=-1)}, "optimizer.warmup_steps"),
        ({"optimizer": OptimizerConfig(clip_norm=0.0)}, "optimizer.clip_norm"),
    ],
)
def test_values_out_of_range_name_the_key(changes, message):
    check(TrainConfig())
    with pytest.raises(UserError, match=message):
        check(TrainConfig(**changes))


def test_resuming_may_change_only_what_changes_no_step(tmp_path):
    old = TrainConfig()
    free = dataclasses.replace(old, steps=2000, log_every=7, keep_checkpoints=1, compile=True)
    check_resumable(old, free, tmp_path)
    changed = dataclasses.replace(old, seed=3, optimizer=OptimizerConfig(lr=0.5), steps=2000)
    with pytest.raises(UserError, match=r"optimizer.lr \(0.0001 -> 0.5\), seed \(0 -> 3\)"):
        check_resumable(old, changed, tmp_path)


def test_cosine_cannot_be_extended(tmp_path):
    old = TrainConfig(optimizer=OptimizerConfig(lr_schedule="cosine"))
    check_resumable(old, dataclasses.replace(old, log_every=3), tmp_path)
    with pytest.raises(UserError, match="steps 1000, which its cosine"):
        check_resumable(old, dataclasses.replace(old, steps=2000), tmp_path)
