import math

import pytest
import torch
from torch import nn

from flowtempo.errors import UserError
from flowtempo.models import SIZES, ModelConfig, SiT, build
from flowtempo.models.sit import sincos_positions

SHAPE = (3, 8, 12)


def small(**changes):
    settings = {"patch": 2, "depth": 2, "dim": 32, "heads": 2, "num_classes": 5} | changes
    return SiT(SHAPE, **settings)


def randomised(model):
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.1, generator=generator)
    return model.eval()


def batch(count=4):
    generator = torch.Generator().manual_seed(1)
    return (
        torch.randn(count, *SHAPE, generator=generator),
        torch.rand(count, generator=generator),
        torch.randint(0, 6, (count,), generator=generator),
    )


@pytest.mark.parametrize(
    ("size", "parameters"),
    # The published DiT-XL/2 has 675,129,632 with learn_sigma (which doubles the output) and the fixed
    # positions counted; ours has neither.
    [("XL/2", 675_129_632 - 16 * (1152 + 1) - 256 * 1152), ("S/2", 32_858_896), ("B/4", 130_377_280)],
)
def test_official_sizes(size, parameters):
    with torch.device("meta"):
        model = build(ModelConfig(size=size), (4, 32, 32), 1000)
    assert sum(p.numel() for p in model.parameters()) == parameters


def test_small_presets_are_small():
    counts = {
        size: sum(p.numel() for p in build(ModelConfig(size=size), shape, 10).parameters())
        for size, shape in [("micro/2", (1, 8, 8)), ("tiny/2", (1, 28, 28)), ("tiny/4", (1, 28, 28))]
    }
    assert counts["micro/2"] < 350_000
    assert 800_000 < counts["tiny/2"] < 1_400_000
    assert 800_000 < counts["tiny/4"] < 1_400_000


def test_official_parameter_names():
    names = set(dict(small().named_parameters()))
    block = ["attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2", "adaLN_modulation.1"]
    layers = [f"blocks.{i}.{name}" for i in range(2) for name in block]
    layers += ["x_embedder.proj", "t_embedder.mlp.0", "t_embedder.mlp.2"]
    layers += ["final_layer.linear", "final_layer.adaLN_modulation.1"]
    expected = {f"{layer}.{kind}" for layer in layers for kind in ("weight", "bias")}
    assert names == expected | {"y_embedder.embedding_table.weight"}
    assert set(small().state_dict()) == names


def test_initial_output_is_zero_and_blocks_are_identities():
    model = build(ModelConfig(size="micro/2"), SHAPE, 5)
    x, t, y = batch()
    assert torch.equal(model(x, t, y), torch.zeros_like(x))
    tokens = torch.randn(2, 24, SIZES["micro"].dim)
    assert torch.equal(model.blocks[0](tokens, torch.randn(2, SIZES["micro"].dim)), tokens)


def test_initial_weights_have_the_official_distributions():
    model = SiT((4, 16, 16), patch=2, depth=1, dim=256, heads=4, num_classes=200)
    block = model.blocks[0]

    def bound(fan_in, fan_out):
        return math.sqrt(6 / (fan_in + fan_out))

    for weight, limit in [
        (block.attn.qkv.weight, bound(256, 768)),
        (block.mlp.fc1.weight, bound(256, 1024)),
        (model.x_embedder.proj.weight, bound(4 * 2 * 2, 256)),
    ]:
        assert weight.abs().max() <= limit
        assert float(weight.detach().std()) == pytest.approx(limit / math.sqrt(3), rel=0.05)
    for weight in (
        model.t_embedder.mlp[0].weight,
        model.t_embedder.mlp[2].weight,
        model.y_embedder.embedding_table.weight,
    ):
        assert float(weight.detach().std()) == pytest.approx(0.02, rel=0.05)
        assert weight.abs().max() > 0.05
    zero = [block.adaLN_modulation[1], model.final_layer.adaLN_modulation[1], model.final_layer.linear]
    assert all(not p.any() for layer in zero for p in layer.parameters())
    assert all(not module.bias.any() for module in model.modules() if isinstance(module, nn.Linear))


def test_build_is_seeded_and_leaves_the_global_state_alone():
    config = ModelConfig(size="micro/4")
    before = torch.random.get_rng_state()
    one, two, other = (build(config, (1, 8, 8), 3, seed=seed).state_dict() for seed in (1, 1, 2))
    assert torch.equal(before, torch.random.get_rng_state())
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert not torch.equal(one["blocks.0.attn.qkv.weight"], other["blocks.0.attn.qkv.weight"])


def test_positions_encode_the_column_first_and_sines_first():
    dim, rows, columns = 8, 2, 3
    table = sincos_positions(dim, rows, columns)
    row, column = 1, 2
    waves = [1.0, 10_000**-0.5]
    expected = [f(p * w) for p in (column, row) for f in (math.sin, math.cos) for w in waves]
    assert table[row * columns + column].tolist() == pytest.approx(expected, abs=1e-7)


def test_unpatchify_puts_each_patch_where_it_was_cut():
    model = small()
    x = torch.randn(2, *SHAPE)
    patches = x.unfold(2, 2, 2).unfold(3, 2, 2)  # (B, C, rows, columns, 2, 2)
    tokens = patches.permute(0, 2, 3, 4, 5, 1).reshape(2, 24, -1)
    assert torch.equal(model._unpatchify(tokens), x)


def test_samples_do_not_see_each_other():
    model, (x, t, y) = randomised(small()), batch()
    whole = model(x, t, y)
    alone = torch.cat([model(x[i : i + 1], t[i : i + 1], y[i : i + 1]) for i in range(len(x))])
    torch.testing.assert_close(whole, alone)


def test_output_depends_on_image_position_time_and_label():
    model, (x, t, y) = randomised(small()), batch()
    out = model(x, t, y)
    assert out.shape == x.shape
    for changed in (
        model(x + 0.1, t, y),
        model(x, (t + 0.01) % 1, y),
        model(x, t, (y + 1) % 6),
        model(x.flip(3), t, y).flip(3),
    ):
        assert (out - changed).flatten(1).abs().amax(1).min() > 1e-4


def test_time_embedding_is_float32_under_autocast():
    model, (x, t, y) = randomised(small()), batch()
    seen = []
    model.t_embedder.register_forward_hook(lambda module, inputs, output: seen.append(output))
    plain = model(x, t, y)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rough = model(x, t, y)
    assert seen[1].dtype == torch.float32
    assert torch.equal(seen[0], seen[1])
    assert rough.dtype == torch.bfloat16
    torch.testing.assert_close(rough.float(), plain, atol=0.1, rtol=0.1)


def test_unconditional_model():
    model, (x, t, y) = randomised(small(num_classes=0)), batch()
    assert model(x, t).shape == x.shape
    with pytest.raises(ValueError, match="unconditional"):
        model(x, t, y)
    with pytest.raises(ValueError, match="no null label"):
        _ = model.null_label
    assert small().null_label == 5


@pytest.mark.parametrize(
    "change",
    [
        lambda x, t, y: (x[:, :2], t, y),
        lambda x, t, y: (x, t[:, None], y),
        lambda x, t, y: (x, t[:1], y),
        lambda x, t, y: (x, t, y[:1]),
        lambda x, t, y: (x, t, None),
    ],
)
def test_wrong_shapes_raise(change):
    with pytest.raises(ValueError, match=r"must have shape|takes images of shape"):
        small()(*change(*batch()))


@pytest.mark.parametrize(
    ("size", "message"),
    [
        ("tiny/8", r"28x28 cannot be cut into patches of 8x8.*divides 28"),
        ("huge/2", r"'huge/2'; known sizes are micro, tiny, S, B, L, XL"),
        ("tiny", r"patch of 2, 4, 8"),
        ("tiny/3", r"patch of 2, 4, 8"),
    ],
)
def test_unfit_sizes(size, message):
    with pytest.raises(UserError, match=message):
        build(ModelConfig(size=size), (1, 28, 28), 10)


def test_declared_channels_are_checked_against_the_data():
    build(ModelConfig(size="micro/2", channels=1), (1, 8, 8), 10)
    with pytest.raises(UserError, match=r"model.channels is 3 .*1-channel"):
        build(ModelConfig(size="micro/2", channels=3), (1, 8, 8), 10)
