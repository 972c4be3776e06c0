"""Colour emoji: the bitmaps of a font such as Noto Color Emoji, which Debian packages (OFL).

About 3,900 images of 136x128 pixels with transparency. They are laid on white, padded to a square and
made smaller.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from PIL import Image, UnidentifiedImageError

from flowtempo.errors import UserError

DEBIAN_FONT = "/usr/share/fonts/truetype/noto/NotoColorEmoji.ttf"
_TEST_SHARE = 0.1


def load_emoji(
    font: Path, size: int, split: str, progress: Callable[[float], None] | None = None
) -> np.ndarray:
    """The train (about 90%) or test part of a font's emoji, in the order of its glyphs.

    An emoji is in the test part if the first 64 bits of its pixels' SHA-256 say so: that depends on
    neither its place nor the other emoji, and exact copies are in the same part. Variants of an emoji
    (skin colours, say) may be in both.

    Args:
        font: A TrueType font with colour bitmaps (table CBDT).
        size: Height and width of the images.
        split: `"train"` or `"test"`.
        progress: Called with the fraction of the glyphs read.

    Returns:
        (N, 3, size, size) uint8.

    Raises:
        UserError: If fontTools is not installed, or the font is damaged or has no colour bitmaps.
    """
    images = []
    for picture, content in _on_white(font, progress):
        if _held_out(content) == (split == "test"):
            small = picture.resize((size, size), Image.Resampling.LANCZOS)
            images.append(np.asarray(small).transpose(2, 0, 1))
    if not images:
        raise UserError(f"{font}: holds no emoji for split={split}: use another font")
    return np.stack(images)


def _on_white(font: Path, progress: Callable[[float], None] | None) -> Iterator[tuple[Image.Image, bytes]]:
    """Each bitmap as a square picture and its pixels."""
    pngs = _bitmaps(font)
    for done, (name, png) in enumerate(pngs.items(), 1):
        try:
            glyph = Image.open(io.BytesIO(png), formats=["PNG"]).convert("RGBA")
        except (UnidentifiedImageError, OSError, SyntaxError, ValueError) as error:
            raise UserError(f"{font}: its bitmap of glyph {name} is damaged ({error})") from error
        side = max(glyph.size)
        picture = Image.new("RGB", (side, side), "white")
        picture.paste(glyph, ((side - glyph.width) // 2, (side - glyph.height) // 2), mask=glyph)
        yield picture, picture.tobytes()
        if progress is not None:
            progress(done / len(pngs))


def _bitmaps(font: Path) -> dict[str, bytes]:
    """PNG of each glyph that has one, in glyph order."""
    try:
        from fontTools.ttLib import TTFont, TTLibError
    except ImportError as error:
        raise UserError("emoji are read with fontTools: pip install 'flowtempo[demo]'") from error
    try:
        with TTFont(font, lazy=True) as opened:
            if "CBDT" not in opened:
                raise UserError(f"{font}: has no colour bitmaps (table CBDT): use Noto Color Emoji")
            strike = opened["CBDT"].strikeData[0]
            order = [name for name in opened.getGlyphOrder() if name in strike]
            return {name: bytes(strike[name].imageData) for name in order}
    except OSError as error:
        raise UserError(f"{font}: cannot be read: {error.strerror or error}") from error
    except Exception as error:
        # fontTools parses without checks: on damaged bytes it raises almost anything
        if isinstance(error, UserError):
            raise
        if isinstance(error, TTLibError):
            raise UserError(f"{font}: not a font, or damaged ({error})") from error
        raise UserError(f"{font}: damaged font ({type(error).__name__}): install it again") from error


def _held_out(content: bytes) -> bool:
    return int.from_bytes(hashlib.sha256(content).digest()[:8], "big") < _TEST_SHARE * 2**64
