import hashlib
import io
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from flowtempo.data import DataConfig, emoji, load, sources
from flowtempo.errors import UserError

FONT = Path(emoji.DEBIAN_FONT)
needs_font = pytest.mark.skipif(not FONT.is_file(), reason="needs Debian's fonts-noto-color-emoji")


def png(color, width=136, height=128):
    buffer = io.BytesIO()
    Image.new("RGBA", (width, height), color).save(buffer, "PNG")
    return buffer.getvalue()


@pytest.fixture
def glyphs(monkeypatch, tmp_path):
    """A font of our own choice of bitmaps."""
    held = {}
    monkeypatch.setattr(emoji, "_bitmaps", lambda font: held)
    (tmp_path / "font.ttf").write_bytes(b"")
    return held, str(tmp_path / "font.ttf")


def both_parts(font, **options):
    return [load(DataConfig("emoji", font, split=split, **options)) for split in ("train", "test")]


def test_transparent_parts_are_white_and_a_wide_picture_is_padded_above_and_below(glyphs, monkeypatch):
    held, font = glyphs
    held["half"] = png((255, 0, 0, 128), 128, 64)
    monkeypatch.setattr(emoji, "_held_out", lambda pixels: False)
    image = load(DataConfig("emoji", font, size=64)).images[0]
    assert image.shape == (3, 64, 64)
    assert image[:, 0, 32].tolist() == image[:, -1, 32].tolist() == [255, 255, 255]
    # half red, half white
    assert image[:, 32, 32].tolist() == [255, 127, 127]


def test_split_follows_the_pixels_alone(glyphs):
    held, font = glyphs
    colors = [(red, green, 7, 255) for red in range(0, 250, 10) for green in range(0, 250, 10)]
    held |= {str(color): png(color) for color in colors}
    first = both_parts(font)
    share = len(first[1]) / len(colors)
    assert abs(share - 0.1) < 4 * (0.1 * 0.9 / len(colors)) ** 0.5
    rows = [{image.tobytes() for image in part.images} for part in first]
    assert not rows[0] & rows[1]
    # a copy, another order and other emoji move none from one part to the other
    shuffled = dict(reversed(held.items()))
    held.clear()
    held |= shuffled | {"copy": png(colors[3]), "new": png((1, 2, 3, 255))}
    again = [{image.tobytes() for image in part.images} for part in both_parts(font)]
    assert rows[0] <= again[0]
    assert rows[1] <= again[1]
    assert not again[0] & again[1]


def test_the_rule_of_the_split_is_written_down():
    # SHA-256 of nothing begins e3, of "a" ca: neither is below 0.1 of the range, whose first byte is 19
    assert [emoji._held_out(text) for text in (b"", b"a")] == [False, False]
    below = [
        n
        for n in range(1000)
        if hashlib.sha256(bytes([n % 256, n // 256])).digest() < bytes.fromhex("1999" * 8)
    ]
    assert [n for n in range(1000) if emoji._held_out(bytes([n % 256, n // 256]))] == below


def test_a_damaged_bitmap_names_its_glyph(glyphs):
    held, font = glyphs
    held["u1F600"] = png((1, 2, 3, 255))[:60]
    with pytest.raises(UserError, match=r"font\.ttf: its bitmap of glyph u1F600 is damaged"):
        load(DataConfig("emoji", font))


def test_a_file_that_is_no_font(tmp_path):
    for content in (b"", b"hello, world" * 50, b"\0\1\0\0" + bytes(200)):
        (tmp_path / "x.ttf").write_bytes(content)
        with pytest.raises(UserError, match=r"x\.ttf") as caught:
            load(DataConfig("emoji", str(tmp_path / "x.ttf")))
        assert "\n" not in str(caught.value)


def test_missing_font_and_missing_fonttools_name_the_package(tmp_path, monkeypatch):
    missing = str(tmp_path / "emoji.ttf")
    monkeypatch.setattr(sources, "DEBIAN_FONT", missing)
    monkeypatch.setitem(sources._PACKAGES, missing, "fonts-noto-color-emoji")
    with pytest.raises(UserError, match=r"emoji\.ttf: no such file.*apt install fonts-noto-color-emoji"):
        load(DataConfig("emoji"))
    Path(missing).write_bytes(b"")
    monkeypatch.setitem(sys.modules, "fontTools.ttLib", None)
    with pytest.raises(UserError, match=r"flowtempo\[demo\]"):
        load(DataConfig("emoji"))


@needs_font
def test_the_emoji_of_debian():
    train = load(DataConfig("emoji"))
    assert train.shape == (3, 32, 32)
    assert train.images.dtype == np.uint8
    assert train.labels is None
    assert len(train) == pytest.approx(0.9 * 3926, rel=0.02)
    # most of a picture is the white around the emoji
    assert np.median(train.images) > 200
    assert (train.images[:, :, 0, 0] == 255).all(1).mean() > 0.9


@needs_font
def test_a_font_cut_short(tmp_path):
    (tmp_path / "cut.ttf").write_bytes(FONT.read_bytes()[:3_000_000])
    with pytest.raises(UserError, match=r"cut\.ttf") as caught:
        load(DataConfig("emoji", str(tmp_path / "cut.ttf")))
    assert "\n" not in str(caught.value)
