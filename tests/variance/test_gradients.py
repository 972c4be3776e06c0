"""Per-sample gradient norms against a loop of autograd over samples."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from flowtempo.errors import UserError
from flowtempo.models import SiT
from flowtempo.variance import gradient_uses, gradients
from flowtempo.variance.gradients import SampleGradients


def loss(model, batch):
    x, *rest = batch
    out = model(x, *(one for one in rest if one is not None))
    return (out.flatten(1) * torch.linspace(-1, 2, out[0].numel(), dtype=out.dtype)).sin().sum(1).float() + (
        out.flatten(1).square().mean(1)
    )


def loop(model, batch, parameters=None, loss=loss):
    """What is claimed, by its definition: (B, n) squared norms and the summed gradients."""
    chosen = [p for n, p in model.named_parameters() if p.requires_grad and (not parameters or parameters(n))]
    rows, total = [], [torch.zeros_like(p) for p in chosen]
    for i in range(len(batch[0])):
        one = tuple(None if x is None else x[i : i + 1] for x in batch)
        found = torch.autograd.grad(loss(model, one).sum(), chosen, allow_unused=True)
        found = [torch.zeros_like(p) if g is None else g for g, p in zip(found, chosen, strict=True)]
        rows.append(torch.stack([g.double().square().sum() for g in found]))
        total = [a + g for a, g in zip(total, found, strict=True)]
    return torch.stack(rows), total


def explicit_only(engine, batch):
    """Names that fell to explicit per-sample gradients."""
    called = []
    original = engine._explicit_squares
    engine._explicit_squares = lambda batch, names: called.extend(names) or original(batch, names)
    result = engine(batch)
    return result, called


def check(model, batch, *, explicit=(), parameters=None, rtol=None, loss=loss):
    wanted, total = loop(model, batch, parameters, loss)
    engine = SampleGradients(model, loss, parameters)
    result, fallen = explicit_only(engine, batch)
    assert fallen == list(explicit)
    dtype = next(model.parameters()).dtype
    rtol = rtol or {torch.float64: 1e-10, torch.float32: 1e-4}[dtype]
    scale = float(wanted.sum(1).mean())  # gradients that vanish but for rounding have no relative error
    torch.testing.assert_close(result.squares, wanted, rtol=rtol, atol=scale * rtol**2)
    for one, (name, found) in zip(total, result.total.items(), strict=True):
        torch.testing.assert_close(found, one, rtol=rtol, atol=rtol * scale**0.5, msg=name)
    return engine


def normal(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.fixture(autouse=True)
def seeded():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


def conv(dims, **options):
    kind = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}[dims]
    return kind(4, 6, **options), (4, *((9, 8, 7)[:dims] if dims < 3 else (5, 6, 4)))


CONVOLUTIONS = [
    conv(1, kernel_size=3, padding=1),
    conv(1, kernel_size=3, stride=2, dilation=2, groups=2),
    conv(2, kernel_size=3, padding="same", dilation=2),
    conv(2, kernel_size=(2, 4), padding="same", bias=False),
    conv(2, kernel_size=(3, 2), stride=(2, 1), padding=(1, 0), groups=2),
    conv(2, kernel_size=2, stride=2),
    conv(2, kernel_size=3, padding=1, padding_mode="reflect"),
    conv(2, kernel_size=1),
    conv(3, kernel_size=(2, 3, 1), stride=(1, 2, 1), padding=(0, 1, 1), dilation=(2, 1, 1)),
    (nn.Conv2d(4, 8, 3, groups=4, padding=1), (4, 6, 5)),
    (nn.ConvTranspose1d(4, 6, 3, stride=2, padding=1, output_padding=1), (4, 5)),
    (nn.ConvTranspose2d(4, 6, (3, 2), stride=2, groups=2, dilation=(1, 2)), (4, 4, 3)),
]


@pytest.mark.parametrize(("layer", "shape"), CONVOLUTIONS, ids=[str(layer) for layer, _ in CONVOLUTIONS])
def test_convolutions(layer, shape):
    check(layer.double(), (normal(5, *shape),))


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.LayerNorm(6), (3, 4, 6)),
        (nn.LayerNorm((4, 6), bias=False), (3, 4, 6)),
        (nn.RMSNorm(6), (4, 6)),
        (nn.RMSNorm((4, 6), eps=0.1), (4, 6)),
        (nn.GroupNorm(2, 4), (4, 5, 6)),
        (nn.GroupNorm(2, 4), (4,)),
        (nn.InstanceNorm2d(4, affine=True), (4, 5, 6)),
        (nn.BatchNorm2d(4).eval(), (4, 5, 6)),
    ],
    ids=lambda value: str(value),
)
def test_normalisations(layer, shape):
    layer = layer.double()
    for parameter in layer.parameters():
        nn.init.normal_(parameter)
    check(layer, (normal(5, *shape),))


@settings(max_examples=40)
@given(
    positions=st.lists(st.integers(1, 5), max_size=2),
    wide=st.integers(1, 12),
    out=st.integers(1, 12),
    count=st.integers(1, 5),
    bias=st.booleans(),
)
def test_linear_over_any_positions(positions, wide, out, count, bias):
    check(nn.Linear(wide, out, bias=bias).double(), (normal(count, *positions, wide),))


@pytest.mark.parametrize("positions", [1, 2, 30])
def test_both_forms_and_their_blocks_agree(positions, monkeypatch):
    layer = nn.Linear(10, 12).double()
    check(layer, (normal(7, positions, 10),))
    monkeypatch.setattr(gradient_uses, "_BLOCK_BYTES", {"cpu": 1})
    check(layer, (normal(7, positions, 10),))


@pytest.mark.parametrize("padding", [None, 2, -1])
@pytest.mark.parametrize("shape", [(), (7,), (2, 5)])
def test_embedding_with_repeated_rows(padding, shape):
    index = torch.randint(5, (6, *shape))
    check(nn.Embedding(5, 3, padding_idx=padding).double(), (index,))


class Applied(nn.Module):
    """A function of the input and named parameters."""

    def __init__(self, apply, **shapes):
        super().__init__()
        for name, shape in shapes.items():
            self.register_parameter(name, nn.Parameter(normal(*shape, seed=len(name))))
        self.apply_to = apply

    def forward(self, x):
        return self.apply_to(self, x)


FOLLOWED = {
    "gain": (lambda m, x: x * m.w, {"w": (6,)}),
    "gain before": (lambda m, x: m.w * x, {"w": (1, 6)}),
    "bias": (lambda m, x: x + m.w, {"w": (4, 6)}),
    "bias per row": (lambda m, x: torch.add(m.w, x), {"w": (4, 1)}),
    "scalar": (lambda m, x: x * m.w, {"w": ()}),
    "table": (lambda m, x: x + m.w, {"w": (1, 4, 6)}),
    "token": (lambda m, x: torch.cat([m.w.expand(len(x), -1, -1), x], 1), {"w": (1, 1, 6)}),
    "product": (lambda m, x: x @ m.w @ m.v_, {"w": (6, 2), "v_": (2, 6)}),
    "rms by hand": (lambda m, x: x * x.square().mean(-1, keepdim=True).rsqrt() * m.w, {"w": (6,)}),
    "used twice": (lambda m, x: F.linear(F.linear(x, m.w).tanh(), m.w), {"w": (6, 6)}),
    "used both ways round": (lambda m, x: F.linear(x, m.w).tanh() @ m.w, {"w": (6, 6)}),
    "used as weight and gain": (lambda m, x: F.linear(x, m.w, m.b_) * m.b_, {"w": (6, 6), "b_": (6,)}),
    "unused": (lambda m, x: x * m.w, {"w": (6,), "left_out": (3,)}),
    "result dropped": (lambda m, x: (x * m.w, x + m.w)[0], {"w": (6,)}),
}
NOT_FOLLOWED = {
    "transposed": (lambda m, x: x @ m.w.T, {"w": (6, 6)}, ["w"]),
    "normalised weight": (lambda m, x: F.linear(x, F.normalize(m.w)), {"w": (6, 6)}, ["w"]),
    "known and unknown": (lambda m, x: F.linear(x, m.w) @ m.w.exp(), {"w": (6, 6)}, ["w"]),
    "shared over the batch": (lambda m, x: x + F.linear(m.p_, m.w), {"w": (6, 6), "p_": (4, 6)}, ["w", "p_"]),
    "twice in one call": (lambda m, x: x * F.linear(m.w, m.w).sum(), {"w": (5, 5)}, ["w"]),
}


@pytest.mark.parametrize("name", FOLLOWED)
def test_bare_parameters_that_are_followed(name):
    apply, shapes = FOLLOWED[name]
    check(Applied(apply, **shapes), (normal(5, 4, 6),))


@pytest.mark.parametrize("name", NOT_FOLLOWED)
def test_bare_parameters_that_are_not_followed_get_explicit_gradients(name):
    apply, shapes, explicit = NOT_FOLLOWED[name]
    engine = check(Applied(apply, **shapes), (normal(5, 4, 6),), explicit=explicit)
    assert not engine._explicit  # seen for what they are, and not by the comparison with one sample alone


@pytest.mark.parametrize("chunk", [1, 1 << 28])
def test_explicit_gradients_in_chunks(chunk, monkeypatch):
    monkeypatch.setattr(gradients, "_CHUNK_BYTES", chunk)
    check(Applied(lambda m, x: x @ m.w.T, w=(6, 6)), (normal(5, 4, 6),), explicit=["w"])


def test_what_cannot_be_vectorised_is_done_one_by_one():
    def branching(m, x):
        return x @ m.w.T if float(x.detach().sum()) > 0 else x @ m.w.sin()

    class Each(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(normal(6, 6))

        def forward(self, x):
            return torch.stack([branching(self, one) for one in x])

    check(Each(), (normal(5, 4, 6),), explicit=["w"])


@pytest.mark.parametrize("width", [4, 7])
def test_positions_that_come_before_samples(width):
    """Equally many positions and samples: shapes do not tell the two apart, one sample passed alone does."""
    inner = nn.Linear(3, 3).double()
    net = nn.Module()
    net.inner = inner
    net.forward = lambda x: inner(x.transpose(0, 1)).tanh().transpose(0, 1)
    check(net, (normal(4, width, 3),), explicit=["inner.weight", "inner.bias"])


class Doubled(torch.autograd.Function):
    """Unseen by torch functions' watchers."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x * w

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return g * w, (g * x).flatten(0, -2).sum(0)


@pytest.mark.parametrize(
    "apply", [lambda m, x: Doubled.apply(x, m.w), lambda m, x: Doubled.apply(x, m.w) * m.w]
)
def test_uses_that_nothing_announces_are_found(apply):
    check(Applied(apply, w=(6,)), (normal(5, 4, 6),), explicit=["w"])


def test_an_unannounced_use_that_comes_later_is_found():
    def late(m, x):
        return Doubled.apply(x, m.w) if float(x.detach()[0, 0, 0]) > 9 else x * m.w.detach()

    model, batch = Applied(late, w=(6,)), normal(5, 4, 6)
    engine = SampleGradients(model, loss)
    assert not engine((batch,)).squares.any()
    batch[:, 0, 0] = 10
    torch.testing.assert_close(engine((batch,)).squares, loop(model, (batch,))[0])


def test_tied_and_repeated_modules():
    table = nn.Embedding(7, 5)
    head = nn.Linear(5, 7, bias=False)
    head.weight = table.weight
    check(nn.Sequential(table, nn.LayerNorm(5), head).double(), (torch.randint(7, (6, 4)),))
    layer = nn.Linear(6, 6)
    check(nn.Sequential(layer, nn.Tanh(), layer, nn.SiLU(), layer).double(), (normal(5, 3, 6),))
    convolution = nn.Conv2d(3, 3, 3, padding=1)
    check(nn.Sequential(convolution, nn.Tanh(), convolution).double(), (normal(4, 3, 5, 5),))


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("options", [{}, {"bias": False}, {"kdim": 5, "vdim": 3}])
@pytest.mark.parametrize("cross", [False, True])
def test_attention(batch_first, options, cross):
    cross = cross or "kdim" in options

    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.MultiheadAttention(8, 2, batch_first=batch_first, **options)

        def forward(self, x, key, value, mask):
            parts = (x, key, value) if cross else (x, x, x)
            parts = parts if batch_first else [part.transpose(0, 1) for part in parts]
            parts = parts if cross else [parts[0]] * 3
            out, scores = self.inner(*parts, key_padding_mask=mask if cross else None)
            out = out if batch_first else out.transpose(0, 1)
            return torch.cat([out.flatten(1), scores.flatten(1)], 1)

    mask = torch.zeros(4, 5, dtype=torch.bool)
    mask[1, 3:] = True
    widths = options.get("kdim", 8), options.get("vdim", 8)
    batch = (normal(4, 6, 8), normal(4, 5, widths[0], seed=1), normal(4, 5, widths[1], seed=2), mask)
    check(Attention().double(), batch)


def test_attention_with_learned_keys_is_right_too():
    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.MultiheadAttention(8, 2, batch_first=True, add_bias_kv=True)

        def forward(self, x):
            return self.inner(x, x, x, need_weights=False)[0]

    check(Attention().double(), (normal(4, 6, 8),), explicit=["inner.bias_k", "inner.bias_v"])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("norm_first", [True, False])
def test_transformer_encoder_layer(dtype, norm_first):
    layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True, norm_first=norm_first).eval().to(dtype)
    check(layer, (normal(5, 6, 16).to(dtype),))


def sit(dtype):
    model = SiT((2, 8, 8), patch=2, depth=2, dim=16, heads=2, num_classes=3).to(dtype)
    for parameter in model.parameters():  # adaLN-Zero starts with zeros, where most gradients are zero
        nn.init.normal_(parameter, std=0.3)
    return model, (normal(6, 2, 8, 8).to(dtype), torch.rand(6).to(dtype), torch.randint(4, (6,)))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_sit(dtype):
    # Its time embedding rounds to float32, but the gradients are those of one function all the same.
    check(*sit(dtype), rtol=1e-10 if dtype == torch.float64 else None)


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.time = nn.Linear(4, 8)
        self.down = nn.Conv2d(8, 16, 3, stride=2, padding=1)
        self.norm = nn.GroupNorm(4, 16)
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)
        self.up = nn.ConvTranspose2d(16, 8, 2, stride=2)
        self.last = nn.Conv2d(16, 3, 3, padding=1)
        self.scale = nn.Parameter(torch.ones(3, 1, 1) / 3)

    def forward(self, x, t):
        waves = torch.stack([(t * k).sin() for k in range(1, 5)], 1)
        x = F.relu(self.first(x) + self.time(waves)[:, :, None, None], inplace=True)
        h = F.silu(self.norm(self.down(x)))
        tokens = h.flatten(2).mT
        h = h + self.attention(tokens, tokens, tokens)[0].mT.reshape_as(h)
        return self.last(torch.cat([x, self.up(h)], 1)) * self.scale


def test_convolutional_network():
    check(UNet().double(), (normal(5, 3, 8, 8), normal(5, seed=1)))
    check(UNet(), (normal(5, 3, 8, 8).float(), normal(5, seed=1).float()))


class LoRA(nn.Module):
    def __init__(self, inner, rank):
        super().__init__()
        self.inner = inner.requires_grad_(False)
        self.down = nn.Linear(inner.in_features, rank, bias=False)
        self.up = nn.Parameter(normal(inner.out_features, rank).float())

    def forward(self, x):
        return self.inner(x) + F.linear(self.down(x), self.up)


def test_low_rank_adapters_only():
    model, batch = sit(torch.float32)
    for block in model.blocks:
        block.attn.qkv = LoRA(block.attn.qkv, 2)
    check(model, batch, parameters=lambda name: ".qkv.down" in name or name.endswith(".qkv.up"))
    everything = SampleGradients(model, loss)
    assert "blocks.0.attn.qkv.inner.weight" not in everything.parameters


def test_half_precision_is_accumulated_in_float32():
    """A bfloat16 sum of thousands of squares stalls; the norm of the float32 gradient is met to rounding."""
    layer = nn.Linear(64, 64).bfloat16()
    x = normal(4, 300, 64).bfloat16()

    def weighted(model, batch):
        return (model(batch[0]) * batch[1]).float().flatten(1).sum(1)

    g = normal(4, 300, 64, seed=1).bfloat16()
    result = SampleGradients(layer, weighted)((x, g))
    wanted = torch.einsum("bpo,bpi->boi", g.double(), x.double()).square().sum((1, 2))
    torch.testing.assert_close(result.squares[:, 0], wanted, rtol=1e-5, atol=0)


def test_autocast_rounds_the_input_that_the_gradient_is_made_of():
    layer = nn.Linear(16, 16)

    def cast(model, batch):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = model(batch[0])
        return (out.float() * batch[1]).flatten(1).sum(1)

    x, g = normal(4, 5, 16).float(), normal(4, 5, 16, seed=1).bfloat16().float()
    result = SampleGradients(layer, cast)((x, g))
    wanted = torch.einsum("bpo,bpi->boi", g.double(), x.bfloat16().double()).square().sum((1, 2))
    torch.testing.assert_close(result.squares[:, 0], wanted, rtol=1e-5, atol=0)


def test_extra_columns_are_carried_along():
    layer = nn.Linear(4, 4).double()

    def two(model, batch):
        out = model(batch[0])
        return torch.stack([out.sum(1), out[:, 0].exp()], 1)

    x = normal(5, 4)
    result = SampleGradients(layer, two)((x,))
    alone = SampleGradients(layer, lambda model, batch: two(model, batch)[:, 0])((x,))
    assert torch.equal(result.squares, alone.squares)
    torch.testing.assert_close(result.values[:, 1], layer(x)[:, 0].exp().detach())
    with pytest.raises(ValueError, match=r"losses must be \(5,\)"):
        SampleGradients(layer, lambda model, batch: model(batch[0]).sum())((x,))


def state(model):
    return [
        (
            module.training,
            dict(module._forward_hooks),
            dict(module._forward_pre_hooks),
            dict(module._backward_hooks),
            sorted(vars(module)),
        )
        for module in model.modules()
    ] + [(p.requires_grad, p.grad, p._backward_hooks, p.clone()) for p in model.parameters()]


def test_model_is_left_as_it_was():
    model = UNet()
    model.norm.eval()
    model.first.bias.requires_grad_(False)
    model.scale.grad = grad = torch.ones_like(model.scale)
    before = state(model)
    batch = (normal(5, 3, 8, 8).float(), normal(5, seed=1).float())

    def failing(model, batch):
        loss(model, batch)
        raise KeyError("stop")

    SampleGradients(model, loss)(batch)
    with pytest.raises(KeyError):
        SampleGradients(model, failing)(batch)
    after = state(model)
    assert [entry[:-1] for entry in before] == [entry[:-1] for entry in after]
    assert model.scale.grad is grad
    assert torch.equal(grad, torch.ones_like(grad))
    assert torch.is_grad_enabled()
    with torch.no_grad():
        SampleGradients(model, loss)(batch)
        assert not torch.is_grad_enabled()


@pytest.mark.parametrize("kind", [nn.BatchNorm1d, nn.SyncBatchNorm])
def test_batch_normalisation_is_refused_by_name(kind):
    model = nn.Sequential(nn.Linear(4, 4), kind(4))
    with pytest.raises(UserError, match=r"1 \(.*BatchNorm.*model.eval\(\)"):
        SampleGradients(model, loss)((torch.randn(5, 4),))
    untracked = nn.Sequential(nn.BatchNorm1d(4, track_running_stats=False)).eval()
    with pytest.raises(UserError, match="replace it"):
        SampleGradients(untracked, loss)((torch.randn(5, 4),))


def test_chance_and_exchange_between_samples_are_refused():
    with pytest.raises(UserError, match="without dropout"):
        SampleGradients(nn.Sequential(nn.Linear(4, 4), nn.Dropout()), loss)((torch.randn(5, 4),))
    mixing = Applied(lambda m, x: x * m.w - x.mean(0), w=(6,))
    with pytest.raises(UserError, match="exchange between samples"):
        SampleGradients(mixing, loss)((normal(5, 4, 6),))


def test_nothing_chosen():
    with pytest.raises(UserError, match="no parameter is left"):
        SampleGradients(nn.Linear(2, 2).requires_grad_(False), loss)
    with pytest.raises(UserError, match="no parameter is left"):
        SampleGradients(nn.Linear(2, 2), loss, parameters=lambda name: "lora" in name)
