import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from flowtempo.data import ArrayData, scan
from flowtempo.errors import UserError


def pixels(n=10, c=3, h=4, w=5, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (n, c, h, w), dtype=np.uint8)


def floats(n=10, c=2, h=3, w=4, seed=0):
    return np.random.default_rng(seed).normal(3, 2, (n, c, h, w)).astype(np.float32)


def test_every_pixel_value_maps_to_model_units_and_back():
    images = np.arange(256, dtype=np.uint8).reshape(1, 1, 16, 16)
    data = ArrayData(images)
    x, y = data.batch([0])
    assert y is None
    assert x.dtype == torch.float32
    assert x.min() == -1
    assert x.max() == 1
    np.testing.assert_allclose(x.flatten(), np.arange(256) / 127.5 - 1, atol=1e-7)
    np.testing.assert_array_equal(data.to_uint8(x), images)


@given(st.integers(0, 255), st.floats(-0.49, 0.49))
def test_rounding_goes_to_the_nearest_pixel(pixel, offset):
    x = torch.full((1, 1, 1, 1), (pixel + offset) / 127.5 - 1)
    assert ArrayData(np.zeros((1, 1, 1, 1), np.uint8)).to_uint8(x).item() == pixel


def test_a_tie_goes_to_the_even_pixel_and_what_is_outside_is_clipped():
    x = torch.tensor([0.0, 1.01, -1.01, 9e9, torch.inf, -torch.inf]).reshape(6, 1, 1, 1)  # 0.0 is 127.5
    data = ArrayData(np.zeros((1, 1, 1, 1), np.uint8))
    assert data.to_uint8(x).ravel().tolist() == [128, 255, 0, 255, 255, 0]


def test_nan_does_not_become_a_pixel():
    with pytest.raises(UserError, match="NaN"):
        ArrayData(pixels()).to_uint8(torch.full((1, 3, 4, 5), torch.nan))


def test_latents_have_no_uint8_form():
    with pytest.raises(UserError, match="not pixels"):
        ArrayData(floats()).to_uint8(torch.zeros(1, 2, 3, 4))
    with pytest.raises(UserError, match="not pixels"):
        ArrayData(np.minimum(floats() - 5, 0)).to_uint8(torch.zeros(1, 2, 3, 4))
    in_range = ArrayData(np.clip(floats() / 10, -1, 1))
    assert in_range.to_uint8(torch.ones(1, 2, 3, 4)).min() == 255


def test_float_images_are_used_as_they_are():
    images = floats()
    x, _ = ArrayData(images).batch(np.arange(10))
    np.testing.assert_array_equal(x.numpy(), images)


def test_half_floats_become_single_ones_batch_by_batch():
    half = floats().astype(np.float16)
    data, wide = ArrayData(half), ArrayData(half.astype(np.float32))
    assert data.images.dtype == np.float16
    x, _ = data.batch([3, 1])
    assert x.dtype == torch.float32
    assert torch.equal(x, wide.batch([3, 1])[0])
    np.testing.assert_allclose(data.channel_mean, wide.channel_mean, rtol=1e-12)
    np.testing.assert_allclose(data.channel_std, wide.channel_std, rtol=1e-12)
    with pytest.raises(UserError, match="image 2 holds NaN or infinity"):
        ArrayData(np.where(np.arange(10)[:, None, None, None] == 2, np.float16(np.inf), half))


@pytest.mark.parametrize("value", [0, 77, 255])
@pytest.mark.parametrize("count", [1, 5000])
def test_constant_and_repeated_images_of_one_channel(value, count):
    data = ArrayData(np.full((count, 1, 8, 8), value, np.uint8))
    assert data.channel_mean == pytest.approx(value / 127.5 - 1, abs=1e-15)
    assert data.channel_std == 0
    assert ArrayData(np.full((count, 1, 8, 8), value, np.float32)).channel_std == 0


def test_moments_of_one_image_larger_than_a_block_are_exact():
    # sums of squares times the count pass 2^63 here
    image = np.zeros((1, 1, 8000, 8000), np.uint8)
    image[..., ::2] = 255
    data = ArrayData(image)
    assert data.channel_mean == 0
    assert data.channel_std == 1


def test_progress_of_the_scan():
    seen = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scan, "_CHUNK_ELEMENTS", 48)
        ArrayData(floats(), progress=seen.append)
    assert seen == pytest.approx([0.2, 0.4, 0.6, 0.8, 1])


def test_batch_follows_any_order_and_takes_any_integers():
    images, labels = pixels(), np.arange(10)
    data = ArrayData(images, labels, 10)
    for indices in ([3, 3, 9, 0], np.array([3, 3, 9, 0], np.uint8), torch.tensor([3, 3, 9, 0])):
        x, y = data.batch(indices)
        assert y.tolist() == [3, 3, 9, 0]
        np.testing.assert_array_equal(data.to_uint8(x), images[[3, 3, 9, 0]])
    x, y = data.batch([])
    assert x.shape == (0, 3, 4, 5)
    assert y.shape == (0,)


def test_a_batch_does_not_alias_the_data():
    images = floats()
    data = ArrayData(images)
    data.batch([0])[0].zero_()
    assert images[0].any()


@pytest.mark.parametrize("indices", [[10], [-1], [True, False], [0.5], [[0]], 0])
def test_bad_indices(indices):
    with pytest.raises(IndexError):
        ArrayData(pixels()).batch(indices)


@pytest.mark.parametrize("images", [pixels(7), floats(7) + 100])
@pytest.mark.parametrize("elements", [1, 100, 1 << 20])
def test_statistics_in_model_units_whatever_the_block(images, elements, monkeypatch):
    monkeypatch.setattr(scan, "_CHUNK_ELEMENTS", elements)
    data = ArrayData(images)
    x = data.batch(np.arange(len(images)))[0].double()
    np.testing.assert_allclose(data.channel_mean, x.mean((0, 2, 3)), rtol=1e-7, atol=1e-7)
    np.testing.assert_allclose(data.channel_std, x.std((0, 2, 3), correction=0), rtol=1e-6)


def test_statistics_survive_a_large_offset():
    # the naive E x^2 - (E x)^2 loses every digit here
    images = np.full((100, 1, 8, 8), 4096.0, np.float32)
    images[::2] += 2**-10
    np.testing.assert_allclose(ArrayData(images).channel_std, [2**-11], rtol=1e-9)


def test_fingerprint_depends_on_contents_shape_dtype_and_labels_only(monkeypatch):
    images = pixels(6, 1, 4, 4)
    prints = {
        ArrayData(images).fingerprint,
        ArrayData(images.reshape(6, 4, 4, 1)).fingerprint,
        ArrayData(images.astype(np.float32)).fingerprint,
        ArrayData(images, np.zeros(6, np.int64), 1).fingerprint,
        ArrayData(images ^ np.uint8(1)).fingerprint,
        ArrayData(images[::-1]).fingerprint,
    }
    assert len(prints) == 6
    once = ArrayData(images, name="a").fingerprint
    monkeypatch.setattr(scan, "_CHUNK_ELEMENTS", 1)
    strided = np.asfortranarray(images)
    assert ArrayData(strided, name="b").fingerprint == once


def test_describe_is_plain_json_values():
    record = ArrayData(pixels(), name="n").describe()
    assert record["count"] == 10
    assert record["shape"] == [3, 4, 5]
    assert record["name"] == "n"
    assert len(record["fingerprint"]) == 64
    assert all(type(v) is float for v in record["channel_mean"] + record["channel_std"])


@pytest.mark.parametrize(
    ("images", "labels", "classes", "message"),
    [
        (floats().astype(np.float64), None, 0, "got float64"),
        (floats().astype(">f4"), None, 0, "of this machine"),
        (pixels()[:0], None, 0, "no empty axis"),
        (pixels()[0], None, 0, r"\(N, C, H, W\)"),
        (pixels(), None, 10, "no labels"),
        (pixels(), np.arange(9), 10, r"int64 \(10,\)"),
        (pixels(), np.arange(10.0), 10, "int64"),
        (pixels(), np.arange(10), 9, r"0..8"),
        (pixels(), np.arange(10) - 1, 10, "from -1"),
    ],
)
def test_bad_construction(images, labels, classes, message):
    with pytest.raises(UserError, match=message) as caught:
        ArrayData(images, labels, classes, "the-name")
    assert "the-name" in str(caught.value)
    assert "\n" not in str(caught.value)


@given(st.integers(0, 9), st.sampled_from([np.nan, np.inf, -np.inf]), st.sampled_from([1, 50, 1 << 20]))
def test_a_value_that_is_not_finite_is_named(where, value, elements):
    images = floats()
    images[where, 1, 2, 3] = value
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scan, "_CHUNK_ELEMENTS", elements)
        with pytest.raises(UserError, match=f"image {where} holds NaN or infinity"):
            ArrayData(images)
