"""Train the feature networks that ship in flowtempo/metrics/weights, on one CPU core.

    python scripts/train_feature_networks.py [digits] [fashion_mnist]

Needs the `demo` extra for the digits and Debian's dataset-fashion-mnist for Fashion-MNIST. Seeded: on one
machine with one version of torch it writes the same bytes again. The test images are used once, at the
end, to measure the accuracy that is written into the file.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import time
from dataclasses import dataclass

import safetensors.torch
import torch
from rich.progress import track
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.fusion import fuse_conv_bn_eval

from flowtempo.data import ArrayData, DataConfig, load
from flowtempo.files import atomic_write
from flowtempo.metrics.features.architecture import SmallConvNet
from flowtempo.metrics.features.network import WEIGHTS


@dataclass(frozen=True)
class Recipe:
    """One network: its data, layers (0 is a pooling) and training."""

    train: DataConfig
    test: DataConfig
    source: str
    layers: tuple[int, ...]
    dim: int
    epochs: int
    batch: int
    shift: int  # augmentation: random translation by up to so many pixels


_FASHION = "/usr/share/datasets/fashion-mnist"
RECIPES = {
    "digits": Recipe(
        train=DataConfig(),
        test=DataConfig(split="test"),
        source="Optical Recognition of Handwritten Digits, E. Alpaydin and C. Kaynak, UCI, CC BY 4.0",
        layers=(32, 32, 0, 64, 64, 0),
        dim=64,
        epochs=60,
        batch=50,
        shift=1,
    ),
    "fashion_mnist": Recipe(
        train=DataConfig("idx", _FASHION),
        test=DataConfig("idx", _FASHION, split="test"),
        source="Fashion-MNIST, H. Xiao, K. Rasul and R. Vollgraf, Zalando, MIT",
        layers=(32, 0, 64, 64, 0, 128, 0),
        dim=128,
        epochs=5,
        batch=125,
        shift=0,
    ),
}


def train(recipe: Recipe, data: ArrayData, name: str) -> SmallConvNet:
    """SGD with Nesterov momentum, one learning-rate cycle, label smoothing."""
    torch.manual_seed(0)
    layers = list(recipe.layers)
    network = SmallConvNet(data.shape, layers, recipe.dim, data.num_classes, normalise=True)
    network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    steps = recipe.epochs * (len(data) // recipe.batch)
    optimizer = torch.optim.SGD(network.parameters(), 0.1, momentum=0.9, nesterov=True, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=steps, pct_start=0.2)
    order = torch.empty(0, dtype=torch.int64)
    for _ in track(range(steps), name):
        if len(order) < recipe.batch:
            order = torch.randperm(len(data))
        chosen, order = order[: recipe.batch], order[recipe.batch :]
        x, y = data.batch(chosen)
        assert y is not None
        x = translate(x, recipe.shift).contiguous(memory_format=torch.channels_last)
        loss = functional.cross_entropy(network(x), y, label_smoothing=0.1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return fold(network.eval())


def translate(x: Tensor, by: int) -> Tensor:
    """Move each image by up to `by` pixels in both directions, filling with black."""
    if by == 0:
        return x
    n, _, height, width = x.shape
    padded = functional.pad(x, (by, by, by, by), value=-1.0)
    row = torch.randint(2 * by + 1, (n, 1)) + torch.arange(height)
    column = torch.randint(2 * by + 1, (n, 1)) + torch.arange(width)
    return padded[torch.arange(n)[:, None, None], :, row[:, :, None], column[:, None, :]].permute(0, 3, 1, 2)


def fold(network: SmallConvNet) -> SmallConvNet:
    """The same function without batch normalisation, its scales moved into the convolutions."""
    body: list[nn.Module] = []
    for module in network.body:
        if isinstance(module, nn.BatchNorm2d):
            convolution = body[-1]
            assert isinstance(convolution, nn.Conv2d)
            body[-1] = fuse_conv_bn_eval(convolution, module)
        else:
            body.append(module)
    network.body = nn.Sequential(*body)
    return network


def accuracy(network: SmallConvNet, data: ArrayData) -> float:
    """Fraction of images classified rightly."""
    right = 0
    with torch.inference_mode():
        for rows in torch.arange(len(data)).split(500):
            x, y = data.batch(rows)
            right += int((network(x).argmax(1) == y).sum())
    return right / len(data)


def main() -> None:
    """Train the named networks and refresh SHA256SUMS."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(RECIPES)}; default: all")
    names = parser.parse_args().names or list(RECIPES)
    if unknown := set(names) - set(RECIPES):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; known: {', '.join(RECIPES)}")
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    for name in names:
        recipe = RECIPES[name]
        data, held_out = load(recipe.train), load(recipe.test)
        start = time.monotonic()
        network = train(recipe, data, name)
        # float16 halves the file; the accuracy is that of the rounded weights
        tensors = {key: value.to(torch.float16).contiguous() for key, value in network.state_dict().items()}
        network.load_state_dict(tensors)
        reached = accuracy(network, held_out)
        metadata = {
            "shape": data.shape,
            "layers": recipe.layers,
            "dim": recipe.dim,
            "classes": data.num_classes,
            "held_out_accuracy": reached,
            "held_out_count": len(held_out),
            "train_fingerprint": data.fingerprint,
            "source": recipe.source,
        }
        # one JSON value: safetensors writes several metadata keys in random order
        content = safetensors.torch.save(tensors, {"flowtempo": json.dumps(metadata)})
        with atomic_write(WEIGHTS / f"{name}.safetensors", "wb") as file:
            file.write(content)
        print(f"{name}: {reached:.2%} of {len(held_out)} held out, {time.monotonic() - start:.0f} s")
    with atomic_write(WEIGHTS / "SHA256SUMS") as file:
        for path in sorted(WEIGHTS.glob("*.safetensors")):
            file.write(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n")


if __name__ == "__main__":
    main()
