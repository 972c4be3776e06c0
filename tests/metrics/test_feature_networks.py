import hashlib
import json
import os
import shutil

import numpy as np
import pytest
import torch
from safetensors import safe_open

from flowtempo.data import DataConfig, load
from flowtempo.errors import UserError
from flowtempo.metrics import features
from flowtempo.metrics.features import network

FASHION = "/usr/share/datasets/fashion-mnist"
SHAPES = {"digits": (1, 8, 8), "fashion_mnist": (1, 28, 28), "pixels": (3, 5, 4)}
DIMS = {"digits": 64, "fashion_mnist": 128, "pixels": 60}


def images(name, n=7):
    return np.random.default_rng(0).integers(0, 256, (n, *SHAPES[name]), dtype=np.uint8)


def held_out_accuracy(name, data):
    net = features.load(name, data.shape)
    reached = float((net.classify(data.images).argmax(1) == data.labels).mean())
    assert reached == pytest.approx(net.accuracy, abs=2.5 / len(data))  # rounding may flip a tie
    return reached


def test_digits_held_out_accuracy():
    assert held_out_accuracy("digits", load(DataConfig(split="test"))) >= 0.97


@pytest.mark.skipif(not os.path.isdir(FASHION), reason="needs Debian's dataset-fashion-mnist")
def test_fashion_mnist_held_out_accuracy():
    assert held_out_accuracy("fashion_mnist", load(DataConfig("idx", FASHION, split="test"))) >= 0.91


def test_weights_are_small():
    assert sum(file.stat().st_size for file in network.WEIGHTS.iterdir()) < 2_000_000


@pytest.mark.parametrize("name", network.NAMES)
def test_contract(name):
    net = features.load(name, SHAPES[name])
    assert (net.name, net.shape, net.dim) == (name, SHAPES[name], DIMS[name])
    assert len(net.checksum) == 64
    x = images(name, 300)
    out = net(x)
    assert out.dtype == np.float32
    assert out.shape == (300, net.dim)
    assert np.isfinite(out).all()
    # a row depends on its image alone, whatever the batch around it, and on how it lies in memory
    np.testing.assert_allclose(net(x[256:]), out[256:], rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(net(np.asfortranarray(x)), out)
    frozen = x.copy()
    frozen.flags.writeable = False  # as a memory-mapped file is
    np.testing.assert_array_equal(net(frozen), out)
    np.testing.assert_array_equal(np.concatenate(list(net.stream(x))), out)
    assert net(x[:0]).shape == (0, net.dim)
    assert len(np.unique(out, axis=0)) == 300


@pytest.mark.parametrize("name", network.NAMES)
def test_wrong_input(name):
    net, x = features.load(name, SHAPES[name]), images(name)
    for wrong in (x.astype(np.float32), x[0], x.astype(np.int64)):
        with pytest.raises(UserError, match="uint8"):
            net(wrong)
    for wrong in (np.repeat(x, 2, axis=1), x[:, :, 1:], x.transpose(0, 2, 3, 1)):
        with pytest.raises(UserError, match=rf"features {name}: takes \(C, H, W\)"):
            net(wrong)


def test_pixels_are_model_units():
    x = images("pixels")
    np.testing.assert_allclose(
        features.load("pixels", SHAPES["pixels"])(x), x.reshape(7, -1) / 127.5 - 1, atol=1e-6
    )


def test_hidden_layer_feeds_the_classifier():
    net = features.load("digits")
    x = images("digits")
    whole = net._network(torch.from_numpy(x) / 127.5 - 1)
    np.testing.assert_allclose(net.classify(x), whole, rtol=1e-4, atol=1e-4)


def test_names_and_shapes_are_checked_at_once():
    with pytest.raises(UserError, match="unknown 'inception'; known: digits, fashion_mnist, pixels"):
        features.load("inception")
    with pytest.raises(UserError, match="needs the shape"):
        features.load("pixels")
    with pytest.raises(UserError, match=r"features digits: takes .* got \(3, 8, 8\)"):
        features.load("digits", (3, 8, 8))


@pytest.fixture
def weights(tmp_path, monkeypatch):
    folder = tmp_path / "weights"
    shutil.copytree(network.WEIGHTS, folder)
    monkeypatch.setattr(network, "WEIGHTS", folder)
    return folder


def test_checksum_is_that_of_the_file(weights):
    content = (weights / "digits.safetensors").read_bytes()
    assert features.load("digits").checksum == hashlib.sha256(content).hexdigest()


@pytest.mark.parametrize("damage", ["flip", "cut", "swap"])
def test_damaged_weights(weights, damage):
    file = weights / "digits.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(
        {
            "flip": content,
            "cut": content[:-100],
            "swap": (weights / "fashion_mnist.safetensors").read_bytes(),
        }[damage]
    )
    with pytest.raises(UserError, match="do not match their checksum") as caught:
        features.load("digits")
    assert str(file) in str(caught.value)
    assert "install flowtempo again" in str(caught.value)


@pytest.mark.parametrize("name", ["digits.safetensors", "SHA256SUMS"])
def test_missing_weights(weights, name):
    (weights / name).unlink()
    with pytest.raises(UserError, match="install flowtempo again") as caught:
        features.load("digits")
    assert str(weights / name) in str(caught.value)


def test_digits_weights_have_not_seen_the_test_images():
    with safe_open(network.WEIGHTS / "digits.safetensors", "np") as file:
        assert json.loads(file.metadata()["flowtempo"])["train_fingerprint"] == load(DataConfig()).fingerprint
