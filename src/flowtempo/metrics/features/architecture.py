"""The small convolutional network behind the packaged features."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class SmallConvNet(nn.Module):
    """3x3 convolutions with ReLU and 2x2 max pooling, one hidden linear layer, one linear classifier.

    The features are the hidden layer *before* its ReLU: a linear map of many pooled activations is much
    closer to the Gaussian that a Frechet distance assumes than a rectified one.

    Args:
        shape: (C, H, W) of the input.
        layers: Width of each convolution, with 0 for a pooling.
        dim: Number of features.
        classes: Number of logits.
        normalise: Batch normalisation after every convolution, for training
            (folded into the convolutions before the weights are shipped).
    """

    def __init__(
        self, shape: tuple[int, int, int], layers: list[int], dim: int, classes: int, normalise: bool = False
    ) -> None:
        super().__init__()
        width, height, breadth = shape
        body: list[nn.Module] = []
        for layer in layers:
            if layer == 0:
                body.append(nn.MaxPool2d(2))
                height, breadth = height // 2, breadth // 2
                continue
            body.append(nn.Conv2d(width, layer, 3, padding=1))
            if normalise:
                body.append(nn.BatchNorm2d(layer))
            body.append(nn.ReLU())
            width = layer
        self.body = nn.Sequential(*body)
        self.hidden = nn.Linear(width * height * breadth, dim)
        self.head = nn.Linear(dim, classes)

    def features(self, x: Tensor) -> Tensor:
        """(N, C, H, W) in [-1, 1] to (N, dim)."""
        return self.hidden(self.body(x).flatten(1))

    def classify(self, features: Tensor) -> Tensor:
        """(N, dim) features to (N, classes) logits."""
        return self.head(torch.relu(features))

    def forward(self, x: Tensor) -> Tensor:
        """(N, C, H, W) in [-1, 1] to (N, classes) logits."""
        return self.classify(self.features(x))
