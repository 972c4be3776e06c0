"""Transformers of diffusers: called in our terms, and probed as explicit gradients say."""

import importlib.util
import json
import sys

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch.func import functional_call, grad, vmap

from flowtempo.cli.main import main
from flowtempo.errors import UserError
from flowtempo.interpolants import Linear
from flowtempo.models import foreign
from flowtempo.models.foreign import FAMILIES, Transformer, load_transformer
from flowtempo.randomness import normal
from flowtempo.variance import Probe, probe

SHAPE = (4, 8, 8)
COUNT = 12

needs_diffusers = pytest.mark.skipif(importlib.util.find_spec("diffusers") is None, reason="needs diffusers")


def random(name, *shape):
    return normal(0, name, 0, range(shape[0]), shape[1:])


def networks():
    """A tiny model of each family with random weights, and its conditioning."""
    import diffusers

    text = random("text", COUNT, 5, 16)
    mask = torch.ones(COUNT, 5)
    mask[::2, 3:] = 0
    common = {
        "sample_size": 8,
        "in_channels": 4,
        "num_layers": 2,
        "num_attention_heads": 2,
        "attention_head_dim": 8,
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield (
            diffusers.SD3Transformer2DModel(
                **common,
                patch_size=2,
                joint_attention_dim=16,
                caption_projection_dim=16,
                pooled_projection_dim=6,
                out_channels=4,
                pos_embed_max_size=8,
                dual_attention_layers=(0,),
                qk_norm="rms_norm",
            ),
            {"encoder_hidden_states": text, "pooled_projections": random("pooled", COUNT, 6)},
        )
        yield (
            diffusers.SanaTransformer2DModel(
                **common,
                patch_size=1,
                out_channels=4,
                num_cross_attention_heads=2,
                cross_attention_head_dim=8,
                cross_attention_dim=16,
                caption_channels=16,
                timestep_scale=0.001,
            ),
            {"encoder_hidden_states": text, "encoder_attention_mask": mask},
        )
        yield (
            diffusers.PixArtTransformer2DModel(
                **{**common, "num_attention_heads": 3},
                patch_size=2,
                out_channels=8,
                cross_attention_dim=24,
                caption_channels=16,
                use_additional_conditions=True,
            ),
            {
                "encoder_hidden_states": text,
                "encoder_attention_mask": mask,
                "resolution": 64 * (1 + torch.arange(2.0 * COUNT).reshape(COUNT, 2)),
                "aspect_ratio": torch.ones(COUNT, 1),
            },
        )
        yield (
            diffusers.DiTTransformer2DModel(
                **common, patch_size=2, out_channels=8, norm_num_groups=4, num_embeds_ada_norm=10
            ),
            {"class_labels": torch.arange(COUNT) % 10},
        )


@pytest.fixture(scope="module")
def models():
    made = {}
    for network, conditions in networks():
        with torch.no_grad():
            for number, parameter in enumerate(network.parameters()):
                # Zero-initialised outputs would make every gradient but theirs zero.
                parameter.add_(0.1 * normal(0, "weights", number, [0], parameter.shape)[0])
        made[type(network).__name__] = network.eval(), conditions
    assert made.keys() == FAMILIES.keys()
    return made


@pytest.fixture(scope="module")
def saved(models, tmp_path_factory):
    """A folder for each family, with its conditioning and latents beside it."""
    folder = tmp_path_factory.mktemp("foreign")
    for name, (network, conditions) in models.items():
        network.save_pretrained(folder / name)
        save_file(conditions, folder / f"{name}.safetensors")
    np.save(folder / "latents.npy", random("latents", COUNT, *SHAPE).numpy())
    return folder


@needs_diffusers
@pytest.mark.parametrize("name", FAMILIES)
def test_is_called_with_times_and_signs_of_its_own(models, name):
    network, conditions = models[name]
    model = Transformer(network, conditions)
    x, t, rows = random("x", 3, *SHAPE), torch.tensor([0.1, 0.5, 0.8]), torch.tensor([7, 0, 4])
    given = {key: values[rows] for key, values in conditions.items()}
    flow = model.objective.prediction == "velocity"
    if name == "PixArtTransformer2DModel":
        given["added_cond_kwargs"] = {key: given.pop(key) for key in ("resolution", "aspect_ratio")}
    timestep = torch.tensor([900.0, 500.0, 200.0]) if flow else torch.tensor([899.0, 499.0, 199.0])
    if name == "SanaTransformer2DModel":
        timestep = timestep * 0.001
    with torch.no_grad():
        theirs = network(hidden_states=x, timestep=timestep, **given).sample[:, :4]
        ours = model(x, t, rows)
    torch.testing.assert_close(ours, -theirs if flow else theirs)


def test_steps_of_the_ddpm_schedule_are_on_our_path():
    beta = torch.linspace(1e-4, 0.02, 1000, dtype=torch.float64)
    retained = (1 - beta).cumprod(0)
    path = FAMILIES["PixArtTransformer2DModel"].objective.interpolant
    t = 1 - torch.arange(1, 1001, dtype=torch.float64) / 1000
    away = (path.time((retained / (1 - retained)).log()) - t).abs()
    assert away.max() < 0.0035
    assert away[:300].max() < 0.0005


@needs_diffusers
@pytest.mark.parametrize("name", FAMILIES)
def test_probe_is_what_explicit_gradients_say(models, name):
    network, conditions = models[name]
    model = Transformer(network, conditions).requires_grad_(True)
    latents, t, rows = random("latents", COUNT, *SHAPE), 0.4, torch.arange(COUNT)
    found = probe(
        model, model.objective, lambda i: (latents[i], rows[i]), COUNT, t=torch.tensor([t]), batch_size=6
    )
    x0 = normal(0, "probe noise", 0, range(COUNT), SHAPE)
    times = torch.full((1,), t)

    def loss(parameters, x1, x0, row):
        x1, x0 = x1[None], x0[None]
        x_t = model.objective.interpolant.mix(x1, x0, times)
        output = functional_call(model, parameters, (x_t, times, row[None]))
        return model.objective.loss(output, x1, x0, times).total.sum()

    parameters = {key: p.detach() for key, p in model.named_parameters()}
    gradients = vmap(grad(loss), in_dims=(None, 0, 0, 0))(parameters, latents, x0, rows)
    g = torch.cat([each.flatten(1) for each in gradients.values()], 1).double()
    square = float(g.square().sum(1).mean())
    variance = float(g.var(0).sum())
    assert float(found.profiles["gradient_second_moment"].mean) == pytest.approx(square, rel=1e-4)
    assert float(found.profiles["gradient_variance"].mean) == pytest.approx(variance, rel=1e-4)


@needs_diffusers
def test_the_command_probes_a_saved_model(saved, tmp_path, capsys):
    words = ["probe", "--transformer", saved / "SD3Transformer2DModel", "--output", tmp_path / "p.json"]
    words += ["--embeddings", saved / "SD3Transformer2DModel.safetensors", "--data.kind", "array"]
    words += ["--data.path", saved / "latents.npy", "--images", 12, "--times", 2]
    words += ["--parameters", r"^transformer_blocks\.1\.attn"]
    assert main([str(word) for word in words]) == 0
    assert "not held out: on which images the transformer was trained is not known" in capsys.readouterr().out
    made = Probe.load(tmp_path / "p.json")
    assert made.denoiser is None
    assert list(made.groups) == ["transformer_blocks.1"]
    told = made.profiles["loss"].model
    assert (told["interpolant"], told["prediction"]) == ("linear", "velocity")
    loaded = load_transformer(saved / "SD3Transformer2DModel", conditions_of(saved), SHAPE)
    part = [p.numel() for name, p in loaded.named_parameters() if "transformer_blocks.1.attn" in name]
    assert told["parameters"] == sum(part)


def conditions_of(saved, name="SD3Transformer2DModel"):
    from safetensors.torch import load_file

    return load_file(saved / f"{name}.safetensors")


@needs_diffusers
def test_a_saved_model_is_the_same_when_loaded(saved, models):
    for name, (network, conditions) in models.items():
        loaded = load_transformer(saved / name, conditions, SHAPE)
        assert not loaded.training
        for key, value in network.state_dict().items():
            assert torch.equal(loaded.network.state_dict()[key], value)
        assert not any(parameter.requires_grad for parameter in loaded.parameters())


@needs_diffusers
def test_what_does_not_fit_is_named(saved, tmp_path):
    folder, conditions = saved / "SD3Transformer2DModel", conditions_of(saved)
    with pytest.raises(UserError, match=r"takes 4 channels, but the latents have shape \(3, 8, 8\)"):
        load_transformer(folder, conditions, (3, 8, 8))
    with pytest.raises(UserError, match="9x8 cannot be cut into patches of 2"):
        load_transformer(folder, conditions, (4, 9, 8))
    with pytest.raises(UserError, match="needs embeddings of pooled_projections"):
        load_transformer(folder, {"encoder_hidden_states": conditions["encoder_hidden_states"]}, SHAPE)
    with pytest.raises(UserError, match=r"takes no caption: it takes .*pooled_projections"):
        load_transformer(folder, {**conditions, "caption": torch.zeros(COUNT)}, SHAPE)
    without = {"encoder_hidden_states": conditions["encoder_hidden_states"]}
    with pytest.raises(UserError, match="needs embeddings of resolution"):
        load_transformer(saved / "PixArtTransformer2DModel", without, SHAPE)


@needs_diffusers
def test_weights_that_are_missing_are_not_made_up(saved, tmp_path, caplog):
    whole = saved / "SD3Transformer2DModel"
    (tmp_path / "config.json").write_text((whole / "config.json").read_text())
    with pytest.raises(UserError, match=f"{tmp_path}: cannot be loaded"):
        load_transformer(tmp_path, conditions_of(saved), SHAPE)
    assert not caplog.records
    from safetensors.torch import load_file

    file = "diffusion_pytorch_model.safetensors"
    weights = load_file(whole / file)
    weights.pop("proj_out.bias")
    save_file(weights, tmp_path / file, metadata={"format": "pt"})
    with pytest.raises(UserError, match=r"missing keys: proj_out\.bias"):
        load_transformer(tmp_path, conditions_of(saved), SHAPE)


def test_other_models_are_told_which_can_be_probed(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"_class_name": "UNet2DConditionModel"}))
    with pytest.raises(
        UserError, match="a UNet2DConditionModel cannot be probed; these can: SD3Transformer2DModel"
    ):
        load_transformer(tmp_path, {}, SHAPE)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(UserError, match="names no model class"):
        load_transformer(tmp_path, {}, SHAPE)
    with pytest.raises(UserError, match="cannot be read"):
        load_transformer(tmp_path / "missing", {}, SHAPE)


def test_without_diffusers_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "diffusers", None)
    (tmp_path / "config.json").write_text(json.dumps({"_class_name": "SD3Transformer2DModel"}))
    with pytest.raises(UserError, match=r"needs diffusers: pip install 'flowtempo\[latents\]'"):
        load_transformer(tmp_path, {}, SHAPE)


def test_flow_models_are_on_the_linear_path():
    assert FAMILIES["SD3Transformer2DModel"].objective.interpolant == Linear()
    assert foreign.PREFIX == "network."
