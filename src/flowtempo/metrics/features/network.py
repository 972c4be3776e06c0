"""Maps from uint8 images to feature vectors."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import safetensors
import torch
from torch import Tensor

from flowtempo.errors import UserError
from flowtempo.metrics.features.architecture import SmallConvNet

WEIGHTS = Path(__file__).parent.parent / "weights"
NAMES = ("digits", "fashion_mnist", "pixels")
_BATCH = 64  # the activations of so many images fit into the cache


class FeatureNetwork(ABC):
    """uint8 images to float32 features. Deterministic; row i depends on image i only.

    Attributes:
        name: For the card.
        shape: (C, H, W) that it accepts.
        dim: Number of features.
        checksum: SHA-256 (hex) of the weights: two networks with one name but other weights differ here.
    """

    name: str
    shape: tuple[int, int, int]
    dim: int
    checksum: str

    def __call__(self, images: np.ndarray) -> np.ndarray:
        """(N, C, H, W) uint8 to (N, dim) float32.

        Raises:
            UserError: If dtype or shape are wrong.
        """
        return np.concatenate(list(self.stream(images)) or [np.empty((0, self.dim), np.float32)])

    def stream(self, images: np.ndarray) -> Iterator[np.ndarray]:
        """The features in blocks of up to 64 images, so that memory stays bounded.

        Raises:
            UserError: If dtype or shape are wrong.
        """
        if images.dtype != np.uint8 or images.ndim != 4:
            raise UserError(
                f"features {self.name}: images must be (N, C, H, W) uint8, got {images.shape} {images.dtype}"
            )
        self.check_shape(images.shape[1:])
        for start in range(0, len(images), _BATCH):
            block = images[start : start + _BATCH].astype(np.float32, order="C")
            with torch.inference_mode():
                x = torch.from_numpy(block).div_(127.5).sub_(1)
                yield self._features(x).numpy()

    def check_shape(self, shape: tuple[int, ...]) -> None:
        """Refuse images of a shape (C, H, W) that this network does not take.

        Raises:
            UserError: If it does not.
        """
        if shape != self.shape:
            raise UserError(
                f"features {self.name}: takes (C, H, W) = {self.shape}, got {shape}: "
                "choose other features (pixels takes any shape)"
            )

    @abstractmethod
    def _features(self, x: Tensor) -> Tensor:
        """(B, C, H, W) in [-1, 1] to (B, dim) float32."""


class Pixels(FeatureNetwork):
    """The values themselves, v / 127.5 - 1, flattened: no weights, any shape."""

    name = "pixels"

    def __init__(self, shape: tuple[int, int, int]) -> None:
        self.shape = shape
        self.dim = int(np.prod(shape))
        self.checksum = hashlib.sha256(b"pixels: v / 127.5 - 1").hexdigest()

    def _features(self, x: Tensor) -> Tensor:
        return x.flatten(1)


class PackagedNetwork(FeatureNetwork):
    """A small classifier that ships with the package; its features are its hidden layer.

    Attributes:
        accuracy: Fraction of held-out test images classified rightly, as recorded when it was trained.
    """

    def __init__(self, name: str) -> None:
        path = WEIGHTS / f"{name}.safetensors"
        self.name = name
        self.checksum = _verified(path)
        with safetensors.safe_open(path, "pt") as file:
            metadata = json.loads(file.metadata()["flowtempo"])
            tensors = {key: file.get_tensor(key).to(torch.float32) for key in file.keys()}  # noqa: SIM118
        channels, height, width = metadata["shape"]
        self.shape = (channels, height, width)
        self.dim = metadata["dim"]
        self.accuracy = metadata["held_out_accuracy"]
        self._network = SmallConvNet(self.shape, metadata["layers"], self.dim, metadata["classes"])
        self._network.load_state_dict(tensors)
        self._network.eval().requires_grad_(False)
        # channels last: twice as fast on a CPU
        self._network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def _features(self, x: Tensor) -> Tensor:
        return self._network.features(x.contiguous(memory_format=torch.channels_last))

    def classify(self, images: np.ndarray) -> np.ndarray:
        """(N, C, H, W) uint8 to (N, classes) float32 logits.

        Raises:
            UserError: If dtype or shape are wrong.
        """
        with torch.inference_mode():
            return self._network.classify(torch.from_numpy(self(images))).numpy()


def load(name: str, shape: tuple[int, int, int] | None = None) -> FeatureNetwork:
    """A feature network by name: `digits`, `fashion_mnist` or `pixels`.

    Args:
        name: Which.
        shape: (C, H, W) of the images to come: checked at once, before anything is generated. `pixels`
            needs it.

    Raises:
        UserError: On an unknown name, a shape that the network does not take, or a missing or damaged
            weight file.
    """
    if name not in NAMES:
        raise UserError(f"features: unknown {name!r}; known: {', '.join(NAMES)}")
    if name == "pixels":
        if shape is None:
            raise UserError("features pixels: needs the shape (C, H, W) of the images")
        return Pixels(shape)
    network = PackagedNetwork(name)
    if shape is not None:
        network.check_shape(shape)
    return network


def _verified(path: Path) -> str:
    """SHA-256 of a weight file, after comparing it with `SHA256SUMS` beside it."""
    remedy = "install flowtempo again (pip install --force-reinstall --no-deps flowtempo)"
    try:
        lines = (path.parent / "SHA256SUMS").read_text(encoding="ascii").splitlines()
        found = hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise UserError(f"{error.filename}: weights cannot be read ({error.strerror}): {remedy}") from error
    if f"{found}  {path.name}" not in lines:
        raise UserError(f"{path}: weights do not match their checksum in SHA256SUMS: {remedy}")
    return found
