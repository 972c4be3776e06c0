import os
import sys

import numpy as np
import pytest

from flowtempo.data import DataConfig, load, sources
from flowtempo.errors import UserError

FASHION = "/usr/share/datasets/fashion-mnist"


def rows(data):
    return {image.tobytes() for image in data.images}


def test_digits_split_is_fixed_stratified_and_disjoint():
    train, test = load(DataConfig()), load(DataConfig(split="test"))
    assert (len(train), len(test)) == (1500, 297)
    assert train.shape == (1, 8, 8)
    assert train.num_classes == test.num_classes == 10
    source = pytest.importorskip("sklearn.datasets").load_digits()
    whole = np.bincount(source.target)
    assert np.abs(np.bincount(test.labels) - whole * 297 / 1797).max() < 1
    assert len(rows(train) | rows(test)) == len({image.tobytes() for image in source.images})
    # the shipped digits weights were trained on this split: it must never change
    assert train.fingerprint == "6190b57e00f9056988336597fe8832488774ba1af906aa64127c870fe7c5109d"
    assert test.fingerprint == "d87fa589083022c8277d1981e223dcaa301a805a1c98faba9947a633b6257b58"


def test_digits_grey_levels():
    levels = np.unique(load(DataConfig()).images)
    assert levels.tolist() == [0, 16, 32, 48, 64, 80, 96, 112, 128, 143, 159, 175, 191, 207, 223, 239, 255]


def test_digits_without_scikit_learn(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(UserError, match=r"flowtempo\[demo\]"):
        load(DataConfig())


def test_limit_is_a_nested_choice_over_the_whole_file():
    whole = load(DataConfig())
    few, more = load(DataConfig(limit=100)), load(DataConfig(limit=300))
    assert (len(few), len(more)) == (100, 300)
    assert rows(few) < rows(more) < rows(whole)
    assert few.num_classes == 10
    assert load(DataConfig(limit=100)).fingerprint == few.fingerprint
    assert load(DataConfig(limit=1500)).fingerprint == whole.fingerprint
    lookup = {image.tobytes(): label for image, label in zip(whole.images, whole.labels, strict=True)}
    assert [lookup[image.tobytes()] for image in few.images] == few.labels.tolist()


@pytest.mark.parametrize("order", ["sorted", "cyclic"])
def test_limit_of_an_ordered_file_still_meets_every_class(order, tmp_path):
    labels = np.repeat(np.arange(10), 100) if order == "sorted" else np.arange(1000) % 10
    np.savez(tmp_path / "x.npz", x=np.zeros((1000, 2, 2), np.uint8), y=labels)
    data = load(DataConfig("array", str(tmp_path / "x.npz"), limit=100))
    assert np.bincount(data.labels, minlength=10).min() > 0


def test_classes_that_the_limit_leaves_out_still_count(tmp_path):
    np.savez(tmp_path / "x.npz", x=np.zeros((10, 2, 2), np.uint8), y=np.arange(10))
    assert load(DataConfig("array", str(tmp_path / "x.npz"), limit=1)).num_classes == 10


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            DataConfig("mnist"),
            "data.kind: unknown 'mnist'; known: digits, idx, array, emoji, sd-scripts, simpletuner",
        ),
        (DataConfig(split="valid"), "data.split: unknown 'valid'; known: train, test"),
        (DataConfig("array", "x.npy", layout="hwc"), "data.layout: unknown 'hwc'; known: nchw, nhwc"),
        (DataConfig(path="x"), "data.path=x has no effect with kind=digits"),
        (DataConfig(labels="x"), "data.labels=x has no effect"),
        (DataConfig(layout="nchw"), "data.layout=nchw has no effect"),
        (DataConfig("idx", "x", layout="nchw"), "data.layout=nchw has no effect with kind=idx"),
        (DataConfig("array", "x", split="test"), "data.split=test has no effect with kind=array"),
        (DataConfig(size=48), "data.size: unknown 48; known: 32, 64"),
        (DataConfig(size=64), "data.size=64 has no effect with kind=digits"),
        (DataConfig("emoji", bucket="4x8"), "data.bucket=4x8 has no effect with kind=emoji"),
        (DataConfig("simpletuner", "x", scale=2.0), "data.scale=2.0 has no effect with kind=simpletuner"),
        (DataConfig("sd-scripts", "x", split="test"), "data.split=test has no effect with kind=sd-scripts"),
        (DataConfig("sd-scripts", "x", bucket="64"), "data.bucket=64: give height and width"),
        (DataConfig("sd-scripts", "x", scale=0.0), "data.scale=0.0: give a positive number"),
        (DataConfig("sd-scripts", "x", scale=float("inf")), "data.scale=inf: give a positive number"),
        (DataConfig("simpletuner"), "data.path is missing"),
        (DataConfig("idx"), "data.path is missing"),
        (DataConfig("array"), "data.path is missing"),
        (DataConfig("array", "/nowhere/x.npy"), "/nowhere/x.npy: no such file or folder"),
        (DataConfig(limit=0), "data.limit=0 is outside 1..1500"),
        (DataConfig(limit=1501), "data.limit=1501 is outside 1..1500"),
    ],
)
def test_configuration_faults(config, message):
    with pytest.raises(UserError) as caught:
        load(config)
    assert message in str(caught.value)


def test_home_folder_in_a_path(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    np.save(tmp_path / "x.npy", np.zeros((2, 3, 3), np.uint8))
    assert len(load(DataConfig("array", "~/x.npy"))) == 2


@pytest.mark.skipif(not os.path.isdir(FASHION), reason="needs Debian's dataset-fashion-mnist")
def test_fashion_mnist_as_debian_lays_it_out():
    train, test = (load(DataConfig("idx", FASHION, split=split)) for split in ("train", "test"))
    assert (len(train), len(test)) == (60_000, 10_000)
    assert train.shape == test.shape == (1, 28, 28)
    assert np.bincount(train.labels).tolist() == [6000] * 10
    # the published mean and standard deviation, 0.2860 and 0.3530 of the [0, 1] range
    np.testing.assert_allclose((train.channel_mean + 1) / 2, 0.2860, atol=1e-4)
    np.testing.assert_allclose(train.channel_std / 2, 0.3530, atol=1e-4)


def test_fashion_mnist_missing(tmp_path, monkeypatch):
    folder = str(tmp_path / "fashion-mnist")
    monkeypatch.setitem(sources._PACKAGES, folder, "dataset-fashion-mnist")
    with pytest.raises(UserError, match="apt install dataset-fashion-mnist"):
        load(DataConfig("idx", folder))
