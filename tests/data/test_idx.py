import gzip
import struct

import numpy as np
import pytest

from flowtempo.data import DataConfig, load
from flowtempo.errors import UserError

IMAGES = np.random.default_rng(0).integers(0, 256, (7, 4, 5), dtype=np.uint8)
LABELS = np.array([0, 1, 2, 2, 1, 0, 4], np.uint8)


def idx(array, code=8):
    return struct.pack(f">HBB{array.ndim}I", 0, code, array.ndim, *array.shape) + array.tobytes()


def pack(content):
    return gzip.compress(content, mtime=0)


@pytest.fixture
def folder(tmp_path):
    for prefix in ("train", "t10k"):
        (tmp_path / f"{prefix}-images-idx3-ubyte.gz").write_bytes(pack(idx(IMAGES)))
        (tmp_path / f"{prefix}-labels-idx1-ubyte.gz").write_bytes(pack(idx(LABELS)))
    return tmp_path


def read(path, labels=None, **options):
    return load(DataConfig("idx", str(path), None if labels is None else str(labels), **options))


def test_folder_compressed_or_not(folder):
    packed = read(folder)
    np.testing.assert_array_equal(packed.images[:, 0], IMAGES)
    assert packed.labels.tolist() == LABELS.tolist()
    assert packed.num_classes == 5
    assert packed.name == f"{folder.name}/train"
    (folder / "train-images-idx3-ubyte").write_bytes(idx(IMAGES[::-1]))
    plain = read(folder)
    np.testing.assert_array_equal(plain.images[:, 0], IMAGES[::-1])
    np.testing.assert_array_equal(read(folder, split="test").images, packed.images)


def test_plain_file_is_memory_mapped_and_has_the_same_fingerprint(folder):
    single = folder / "one"
    single.write_bytes(idx(IMAGES))
    data = read(single)
    assert data.labels is None
    base = data.images
    while base is not None and not isinstance(base, np.memmap):
        base = base.base
    assert isinstance(base, np.memmap)
    packed = read(folder / "train-images-idx3-ubyte.gz")
    assert data.fingerprint == packed.fingerprint


def test_single_file_with_labels(folder):
    data = read(folder / "train-images-idx3-ubyte.gz", folder / "train-labels-idx1-ubyte.gz")
    assert data.fingerprint == read(folder).fingerprint


FAULTS = {
    "empty": (b"", "not an IDX file"),
    "text": (b"hello, world", "not an IDX file"),
    "png": (b"\x89PNG\r\n\x1a\n" + bytes(50), "not an IDX file"),
    "inside header": (idx(IMAGES)[:9], "ends inside its header"),
    "cut": (idx(IMAGES)[:-1], "cut short: its header announces 140 values, 139"),
    "trailing": (idx(IMAGES) + b"\0", "goes on after"),
    "floats": (idx(IMAGES.astype(">f4"), 13), "float32"),
    "labels": (idx(LABELS), "1 axes where images have 3"),
    "no images": (idx(IMAGES[:0]), "holds no values"),
    "gz text": (pack(b"hello, world"), "not an IDX file"),
    "gz cut": (pack(idx(IMAGES))[:-30], "damaged gzip"),
    "gz checksum": (pack(idx(IMAGES))[:-8] + bytes(8), "damaged gzip"),
    "gz body": (pack(idx(IMAGES))[:12] + b"\xff" * 50, "damaged gzip"),
    "gz short": (pack(idx(IMAGES)[:-1]), "cut short"),
    "gz trailing": (pack(idx(IMAGES) + b"\0"), "goes on after"),
    "gz false header": (pack(struct.pack(">HBB3I", 0, 8, 3, 1 << 31, 1 << 31, 1 << 31)), "damaged"),
    "false header": (struct.pack(">HBB3I", 0, 8, 3, 1 << 31, 1 << 31, 1 << 31), "cut short"),
}


@pytest.mark.parametrize(("content", "message"), FAULTS.values(), ids=FAULTS)
def test_damaged_images(content, message, tmp_path):
    file = tmp_path / "images-file"
    file.write_bytes(content)
    with pytest.raises(UserError, match=message) as caught:
        read(file)
    assert str(file) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_label_file_faults_name_the_label_file(folder):
    images, labels = folder / "train-images-idx3-ubyte.gz", folder / "labels"
    for content, message in [
        (idx(LABELS[:-1]), "6 labels for the 7 images"),
        (idx(IMAGES), "3 axes where labels have 1"),
        (idx(LABELS)[:-1], "cut short"),
    ]:
        labels.write_bytes(content)
        with pytest.raises(UserError, match=message) as caught:
            read(images, labels)
        assert str(caught.value).startswith(str(labels))


def test_a_missing_member_and_a_missing_label_file(folder):
    (folder / "t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(UserError, match=r"has no t10k-labels-idx1-ubyte or t10k-labels-idx1-ubyte\.gz"):
        read(folder, split="test")
    with pytest.raises(UserError, match="nowhere: cannot be read: No such file"):
        read(folder / "train-images-idx3-ubyte.gz", folder / "nowhere")


def test_options_without_effect(folder):
    with pytest.raises(UserError, match="leave out labels"):
        read(folder, folder / "train-labels-idx1-ubyte.gz")
    with pytest.raises(UserError, match="no splits"):
        read(folder / "train-images-idx3-ubyte.gz", split="test")
