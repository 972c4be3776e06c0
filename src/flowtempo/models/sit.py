"""SiT (Ma et al., arXiv:2401.08740): a DiT (Peebles & Xie, arXiv:2212.09748) that takes t in [0, 1].

A vision transformer over patches, conditioned by adaLN-Zero. Sizes and initialisation are the official
ones with `learn_sigma` off, and so are the names of the parameters, so that official weights load by name.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flowtempo.errors import UserError

FREQUENCIES = 256
MAX_PERIOD = 10_000.0


class SiT(nn.Module):
    """Transformer over image patches, conditioned on time and class through adaLN-Zero.

    Args:
        shape: (C, H, W) of the images; H and W must be multiples of `patch`.
        patch: Side of the square patches.
        depth: Number of blocks.
        dim: Width of a token; a multiple of 4 and of `heads`.
        heads: Attention heads.
        num_classes: Classes, to which one null label is added; 0 for an unconditional model.
        mlp_ratio: Hidden width of the MLP over `dim`.

    Raises:
        UserError: `patch` does not divide the images.
    """

    def __init__(
        self,
        shape: tuple[int, int, int],
        *,
        patch: int,
        depth: int,
        dim: int,
        heads: int,
        num_classes: int = 0,
        mlp_ratio: int = 4,
    ) -> None:
        super().__init__()
        channels, height, width = shape
        if height % patch or width % patch:
            raise UserError(
                f"images of {height}x{width} cannot be cut into patches of {patch}x{patch}: "
                f"choose a model whose patch (the number after the slash) divides {math.gcd(height, width)}"
            )
        if dim % heads or dim % 4:
            raise ValueError(f"dim {dim} must be a multiple of 4 and of the number of heads {heads}")
        self.shape = shape
        self.patch = patch
        self.num_classes = num_classes
        self.x_embedder = _PatchEmbedding(channels, patch, dim)
        self.t_embedder = _TimeEmbedding(dim)
        self.y_embedder = _LabelEmbedding(num_classes, dim) if num_classes else None
        blocks = [_Block(dim, heads, mlp_ratio) for _ in range(depth)]
        self.blocks = nn.ModuleList(blocks)
        self.final_layer = _FinalLayer(dim, patch, channels)
        # A function of the shape, so neither trained nor saved.
        self.register_buffer(
            "pos_embed", sincos_positions(dim, height // patch, width // patch)[None], persistent=False
        )
        self.pos_embed: Tensor
        self._initialise(blocks)

    @property
    def null_label(self) -> int:
        """The label that stands for "no class" (= `num_classes`); an unconditional model has none."""
        if not self.num_classes:
            raise ValueError("an unconditional model has no null label")
        return self.num_classes

    def forward(self, x: Tensor, t: Tensor, y: Tensor | None = None) -> Tensor:
        """Predict the velocity (or whatever the objective asks for).

        Args:
            x: (B, C, H, W) noisy images.
            t: (B,) times in [0, 1], float32 or wider.
            y: (B,) int64 labels in [0, num_classes], the last being the null label. None if and only if
                the model is unconditional.

        Returns:
            (B, C, H, W).
        """
        if x.shape[1:] != self.shape:
            raise ValueError(f"the model takes images of shape {self.shape}, got {tuple(x.shape[1:])}")
        if t.shape != x.shape[:1]:
            raise ValueError(f"t must have shape ({len(x)},), got {tuple(t.shape)}")
        condition = self.t_embedder(t)
        if self.y_embedder is None:
            if y is not None:
                raise ValueError("the model is unconditional but labels were given")
        elif y is None or y.shape != t.shape:
            raise ValueError(f"y must have shape ({len(x)},), got {None if y is None else tuple(y.shape)}")
        else:
            condition = condition + self.y_embedder(y)
        tokens = self.x_embedder(x) + self.pos_embed
        for block in self.blocks:
            tokens = block(tokens, condition)
        return self._unpatchify(self.final_layer(tokens, condition))

    def _unpatchify(self, patches: Tensor) -> Tensor:
        channels, height, width = self.shape
        p = self.patch
        grid = patches.view(-1, height // p, width // p, p, p, channels)
        return grid.permute(0, 5, 1, 3, 2, 4).reshape(-1, channels, height, width)

    def _initialise(self, blocks: list[_Block]) -> None:
        """Xavier-uniform everywhere, N(0, 0.02) embeddings, zero modulation and output: the identity."""
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                nn.init.zeros_(module.bias)
        nn.init.xavier_uniform_(self.x_embedder.proj.weight.view(self.x_embedder.proj.weight.shape[0], -1))
        assert self.x_embedder.proj.bias is not None
        nn.init.zeros_(self.x_embedder.proj.bias)
        if self.y_embedder is not None:
            nn.init.normal_(self.y_embedder.embedding_table.weight, std=0.02)
        for module in self.t_embedder.mlp:
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=0.02)
        zero = [block.adaLN_modulation for block in blocks]
        for module in (*zero, self.final_layer.adaLN_modulation, self.final_layer.linear):
            for parameter in module.parameters():
                nn.init.zeros_(parameter)


def sincos_positions(dim: int, rows: int, columns: int) -> Tensor:
    """Fixed 2-D sine-cosine positions: the first half encodes the column, the second the row.

    Returns:
        (rows * columns, dim) float32, row by row; each half is all sines, then all cosines, of the
        coordinate times 10000^(-k / (dim / 4)).
    """
    frequency = MAX_PERIOD ** -(torch.arange(dim // 4, dtype=torch.float64) / (dim // 4))

    def axis(position: Tensor) -> Tensor:
        angle = position.flatten()[:, None] * frequency
        return torch.cat([angle.sin(), angle.cos()], dim=1)

    row, column = torch.meshgrid(
        torch.arange(rows, dtype=torch.float64), torch.arange(columns, dtype=torch.float64), indexing="ij"
    )
    return torch.cat([axis(column), axis(row)], dim=1).to(torch.float32)


class _PatchEmbedding(nn.Module):
    def __init__(self, channels: int, patch: int, dim: int) -> None:
        super().__init__()
        self.proj = nn.Conv2d(channels, dim, kernel_size=patch, stride=patch)

    def forward(self, x: Tensor) -> Tensor:
        return self.proj(x).flatten(2).transpose(1, 2)


class _TimeEmbedding(nn.Module):
    """256 cosines and sines of t, then an MLP, outside autocast: bfloat16 cannot tell nearby times apart."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(FREQUENCIES, dim), nn.SiLU(), nn.Linear(dim, dim))

    def forward(self, t: Tensor) -> Tensor:
        half = FREQUENCIES // 2
        exponent = torch.arange(half, dtype=torch.float32, device=t.device) / half
        angle = t.to(torch.float32)[:, None] * torch.exp(-math.log(MAX_PERIOD) * exponent)
        waves = torch.cat([angle.cos(), angle.sin()], dim=1)
        with torch.autocast(t.device.type, enabled=False):
            return self.mlp(waves.to(next(self.mlp.parameters()).dtype))


class _LabelEmbedding(nn.Module):
    def __init__(self, num_classes: int, dim: int) -> None:
        super().__init__()
        self.embedding_table = nn.Embedding(num_classes + 1, dim)

    def forward(self, y: Tensor) -> Tensor:
        return self.embedding_table(y)


class _Attention(nn.Module):
    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, dim = x.shape
        qkv = self.qkv(x).view(batch, tokens, 3, self.heads, dim // self.heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = F.scaled_dot_product_attention(query, key, value)
        return self.proj(mixed.transpose(1, 2).reshape(batch, tokens, dim))


class _MLP(nn.Module):
    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(dim, hidden)
        self.fc2 = nn.Linear(hidden, dim)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(F.gelu(self.fc1(x), approximate="tanh"))


class _Block(nn.Module):
    """Attention and MLP, each normalised, shifted, scaled and gated by the condition."""

    def __init__(self, dim: int, heads: int, mlp_ratio: int) -> None:
        super().__init__()
        self.attn = _Attention(dim, heads)
        self.mlp = _MLP(dim, mlp_ratio * dim)
        self.adaLN_modulation = nn.Sequential(nn.SiLU(), nn.Linear(dim, 6 * dim))

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        modulation = self.adaLN_modulation(condition)[:, None]
        shift_attn, scale_attn, gate_attn, shift_mlp, scale_mlp, gate_mlp = modulation.chunk(6, dim=2)
        x = torch.addcmul(x, gate_attn, self.attn(_modulate(x, shift_attn, scale_attn)))
        return torch.addcmul(x, gate_mlp, self.mlp(_modulate(x, shift_mlp, scale_mlp)))


class _FinalLayer(nn.Module):
    def __init__(self, dim: int, patch: int, channels: int) -> None:
        super().__init__()
        self.linear = nn.Linear(dim, patch * patch * channels)
        self.adaLN_modulation = nn.Sequential(nn.SiLU(), nn.Linear(dim, 2 * dim))

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        shift, scale = self.adaLN_modulation(condition)[:, None].chunk(2, dim=2)
        return self.linear(_modulate(x, shift, scale))


def _modulate(x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    return torch.addcmul(shift, F.layer_norm(x, x.shape[-1:], eps=1e-6), 1 + scale)
