"""scikit-learn's handwritten digits: 1,797 images of 8x8 pixels with 17 grey levels, ten classes.

Source: E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits, UCI (CC BY 4.0).
"""

from __future__ import annotations

import numpy as np

from flowtempo.errors import UserError

TRAIN, TEST = 1500, 297


def load_digits(split: str) -> tuple[np.ndarray, np.ndarray]:
    """The train (1,500) or test (297) part, stratified by class and the same on every machine.

    Grey levels 0..16 become round(level * 255 / 16), half to even.

    Returns:
        (N, 1, 8, 8) uint8 and (N,) int64, in the order of the source.

    Raises:
        UserError: If scikit-learn is not installed.
    """
    try:
        from sklearn.datasets import load_digits as source
    except ImportError as error:
        raise UserError("digits come with scikit-learn: pip install 'flowtempo[demo]'") from error
    bunch = source()
    images = np.rint(bunch.images * (255 / 16)).astype(np.uint8)[:, None]
    labels = bunch.target.astype(np.int64)
    held_out = _held_out(labels)
    chosen = held_out if split == "test" else ~held_out
    return images[chosen], labels[chosen]


def _held_out(labels: np.ndarray) -> np.ndarray:
    """Mask of the test images: each class gives its share, left-over places go by largest remainder."""
    share = np.bincount(labels) * (TEST / len(labels))
    quota = np.floor(share).astype(int)
    left_over = TEST - quota.sum()
    quota[np.argsort(quota - share, kind="stable")[:left_over]] += 1
    # raw bits, not Generator.choice: NumPy promises the former never change, and not the latter
    key = np.random.Philox(key=0).random_raw(len(labels))
    mask = np.zeros(len(labels), dtype=bool)
    for label, size in enumerate(quota):
        members = np.flatnonzero(labels == label)
        mask[members[np.argsort(key[members], kind="stable")[:size]]] = True
    return mask
