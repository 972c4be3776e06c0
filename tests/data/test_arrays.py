import io
import os
import tracemalloc
import zipfile

import numpy as np
import pytest

from flowtempo.data import ArrayData, DataConfig, load
from flowtempo.errors import UserError

PIXELS = np.random.default_rng(0).integers(0, 256, (6, 3, 8, 7), dtype=np.uint8)
LATENTS = np.random.default_rng(0).normal(size=(6, 16, 8, 8)).astype(np.float32)
LABELS = np.array([0, 3, 1, 1, 0, 2], np.int32)


def read(path, labels=None, **options):
    return load(DataConfig("array", str(path), None if labels is None else str(labels), **options))


def write(path, array):
    np.save(path, array)
    return path


def test_npy_is_memory_mapped(tmp_path):
    data = read(write(tmp_path / "x.npy", PIXELS))
    np.testing.assert_array_equal(data.images, PIXELS)
    base = data.images
    while base is not None and not isinstance(base, np.memmap):
        base = base.base
    assert isinstance(base, np.memmap)
    assert data.labels is None
    assert data.num_classes == 0


def test_axis_orders_agree(tmp_path):
    last = PIXELS.transpose(0, 2, 3, 1)
    want = read(write(tmp_path / "first.npy", PIXELS)).fingerprint
    assert read(write(tmp_path / "last.npy", last)).fingerprint == want
    assert read(write(tmp_path / "last.npy", last), layout="nhwc").fingerprint == want
    assert read(write(tmp_path / "fortran.npy", np.asfortranarray(PIXELS))).fingerprint == want
    grey = read(write(tmp_path / "grey.npy", PIXELS[:, 0]))
    np.testing.assert_array_equal(grey.images, PIXELS[:, :1])


def test_latents_need_a_layout(tmp_path):
    file = write(tmp_path / "x.npy", LATENTS)
    with pytest.raises(UserError, match="no axis of size 1, 3 or 4 for channels: set layout"):
        read(file)
    np.testing.assert_array_equal(read(file, layout="nchw").images, LATENTS)
    assert read(file, layout="nhwc").shape == (8, 16, 8)


@pytest.mark.parametrize("shape", [(2, 3, 5, 3), (2, 1, 9, 4), (2, 4, 4, 4)])
def test_two_possible_channel_axes(shape, tmp_path):
    with pytest.raises(UserError, match="either axis 1 or axis 3 for channels: set layout"):
        read(write(tmp_path / "x.npy", np.zeros(shape, np.uint8)))


@pytest.mark.parametrize("images", ["images", "x", "arr_0"])
@pytest.mark.parametrize("labels", ["labels", "y", "arr_1", None])
@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_npz_keys(images, labels, save, tmp_path):
    arrays = {images: PIXELS} | ({} if labels is None else {labels: LABELS})
    save(tmp_path / "x.npz", other=np.zeros(3), **arrays)
    data = read(tmp_path / "x.npz")
    np.testing.assert_array_equal(data.images, PIXELS)
    if labels is None:
        assert data.labels is None
    else:
        assert data.labels.tolist() == LABELS.tolist()
        assert data.labels.dtype == np.int64
        assert data.num_classes == 4


def test_separate_labels(tmp_path):
    labels = write(tmp_path / "y.npy", LABELS)
    assert read(write(tmp_path / "x.npy", PIXELS), labels).num_classes == 4
    np.savez(tmp_path / "x.npz", x=PIXELS, y=LABELS)
    with pytest.raises(UserError, match="holds labels already"):
        read(tmp_path / "x.npz", labels)


def bytes_of(save, *args, **kwargs):
    buffer = io.BytesIO()
    save(buffer, *args, **kwargs)
    return buffer.getvalue()


def corrupt_member():
    content = bytearray(bytes_of(np.savez, x=PIXELS))
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        start = archive.infolist()[0].header_offset
    content[start + 400] ^= 0xFF
    return bytes(content)


OBJECTS = np.empty(2, dtype=object)
OBJECTS[:] = [np.zeros((3, 4, 4)), np.zeros((3, 5, 5))]
NAN = np.where(np.arange(6)[:, None, None, None] == 4, np.float32(np.nan), PIXELS.astype(np.float32))

FAULTS = {
    "empty.npy": (b"", "not a .npy file"),
    "pickle.npy": (b"\x80\x04N.", "not a .npy file"),
    "cut.npy": (bytes_of(np.save, PIXELS)[:-1], "damaged or cut short"),
    "header.npy": (bytes_of(np.save, PIXELS)[:20], "damaged or cut short"),
    "objects.npy": (bytes_of(np.save, OBJECTS), "mixed shapes"),
    "double.npy": (bytes_of(np.save, LATENTS.astype(float)[:, :3]), "got float64: save array.astype"),
    "swapped.npy": (bytes_of(np.save, LATENTS.astype(">f4")[:, :3]), "float32 of this machine, got >f4"),
    "int.npy": (bytes_of(np.save, PIXELS.astype(int)), r"got int64: save pixels 0\.\.255 as .*uint8"),
    "int16.npy": (bytes_of(np.save, PIXELS.astype(np.int16)), "got int16: save pixels"),
    "uint16.npy": (bytes_of(np.save, PIXELS.astype(np.uint16)), "got uint16: save pixels"),
    "text.npy": (bytes_of(np.save, np.full((2, 3, 4, 5), "a")), "got <U1: save numbers"),
    "flat.npy": (bytes_of(np.save, PIXELS.reshape(6, -1)), r"images must be \(N, H, W\)"),
    "none.npy": (bytes_of(np.save, PIXELS[:0]), "no empty axis"),
    "nan.npy": (bytes_of(np.save, NAN), "image 4 holds NaN"),
    "empty.npz": (b"", "damaged .npz"),
    "npy.npz": (bytes_of(np.save, PIXELS), "not a .npz file"),
    "cut.npz": (bytes_of(np.savez, x=PIXELS)[:-30], "damaged .npz"),
    "corrupt.npz": (corrupt_member(), "damaged .npz"),
    "objects.npz": (bytes_of(np.savez, x=OBJECTS), "mixed shapes"),
    "statistics.npz": (
        bytes_of(np.savez, mu=np.zeros(3), sigma=np.eye(3)),
        "holds mu, sigma; the",
    ),
    "nothing.npz": (bytes_of(np.savez), "holds nothing"),
    "twice.npz": (bytes_of(np.savez, x=PIXELS, images=PIXELS), "images and x: which is meant"),
    "one-hot.npz": (bytes_of(np.savez, x=PIXELS, y=np.eye(6, dtype=int)), "labels must be 6 integers"),
    "float-labels.npz": (bytes_of(np.savez, x=PIXELS, y=LABELS / 1), "labels must be 6 integers"),
    "few-labels.npz": (bytes_of(np.savez, x=PIXELS, y=LABELS[1:]), "labels must be 6 integers"),
    "negative.npz": (bytes_of(np.savez, x=PIXELS, y=LABELS - 1), "from -1"),
    "images.pt": (b"PK", "not a .npy or .npz file"),
}


@pytest.mark.parametrize(("name", "content", "message"), [(k, *v) for k, v in FAULTS.items()], ids=FAULTS)
def test_faults_are_one_line_and_name_the_file(name, content, message, tmp_path):
    file = tmp_path / name
    file.write_bytes(content)
    with pytest.raises(UserError, match=message) as caught:
        read(file)
    assert str(file) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_layout_without_effect(tmp_path):
    with pytest.raises(UserError, match="layout=nchw has no effect"):
        read(write(tmp_path / "x.npy", PIXELS[:, 0]), layout="nchw")


def test_a_folder_named_like_a_file(tmp_path):
    (tmp_path / "x.npy").mkdir()
    with pytest.raises(UserError, match="cannot be read"):
        read(tmp_path / "x.npy")


def test_a_member_that_is_no_array(tmp_path):
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        archive.writestr("images.npy", b"hello")
    with pytest.raises(UserError, match=r"x\.npz"):
        read(tmp_path / "x.npz")


@pytest.mark.parametrize(
    "header", [b"{'descr': (((", b"{'a': \x00}", b"import os", b"{'descr': '<f4',", b"[]"]
)
def test_a_garbage_header(tmp_path, header):
    (tmp_path / "x.npy").write_bytes(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)
    with pytest.raises(UserError, match=r"x\.npy: damaged"):
        read(tmp_path / "x.npy")


@pytest.mark.parametrize("kind", ["array", "idx"])
def test_a_pipe_is_no_data(tmp_path, kind):
    os.mkfifo(tmp_path / "x.npy")
    with pytest.raises(UserError, match="not a regular file"):
        load(DataConfig(kind, str(tmp_path / "x.npy")))


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (np.full(6, -1), "must be numbered from 0"),
        (np.full(6, 2**40), "more than 1048576 classes"),
        (np.full(6, 2**63, np.uint64), "more than 1048576 classes"),
    ],
)
def test_labels_that_are_no_classes(tmp_path, labels, message):
    with pytest.raises(UserError, match=message):
        read(write(tmp_path / "x.npy", PIXELS), write(tmp_path / "y.npy", labels))


@pytest.mark.parametrize("dtype", [np.uint8, np.float16, np.float32])
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_a_file_cut_short_while_it_is_mapped_is_an_error(dtype, layout, tmp_path):
    images = np.zeros((500, 3, 16, 16) if layout == "nchw" else (500, 16, 16, 3), dtype)
    data = read(write(tmp_path / "x.npy", images))
    data.batch([499])
    os.truncate(tmp_path / "x.npy", images.nbytes - 1)
    # reading past the end of a mapped file would kill this process
    with pytest.raises(UserError, match=r"x\.npy: was cut short while in use"):
        data.batch([499])
    with pytest.raises(UserError, match=r"x\.npy: was cut short while in use"):
        ArrayData(data.images, name=data.name)


def test_a_file_replaced_while_it_is_mapped_keeps_its_old_contents(tmp_path):
    data = read(write(tmp_path / "x.npy", PIXELS))
    np.save(tmp_path / "new.npy", PIXELS[:1] * 0)
    os.replace(tmp_path / "new.npy", tmp_path / "x.npy")
    np.testing.assert_array_equal(data.to_uint8(data.batch(range(6))[0]), PIXELS)


def test_memory_stays_bounded(tmp_path):
    # 64 MB on disk, read in blocks: only what is asked for is ever in memory
    shape = (1000, 16, 32, 32)
    mapped = np.lib.format.open_memmap(tmp_path / "x.npy", "w+", np.float32, shape)
    mapped[::7] = 1.5
    mapped.flush()
    del mapped
    tracemalloc.start()
    try:
        data = read(tmp_path / "x.npy", layout="nchw")
        data.batch([5, 7, 700])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 16 << 20
