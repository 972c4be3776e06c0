"""What stands in a `<figure>`: a drawing as inline SVG or an image as a data URI, with its words."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from markupsafe import Markup
from matplotlib.figure import Figure
from PIL import Image

from flowtempo.errors import UserError
from flowtempo.report import style

_WIDEST = 1200  # pixels of an embedded image: wider ones would make the page weigh tens of megabytes
_PIXEL_ART = 512  # below this an image is enlarged by whole pixels, not blurred


@dataclass(frozen=True)
class Missing:
    """A figure that cannot be drawn, and the one sentence that says what would be needed."""

    missing: str


@dataclass(frozen=True)
class Picture:
    """One figure of the page.

    Attributes:
        id: Of the `<figure>`, for links and tests.
        title: Its heading.
        description: What a reader who does not see it is told.
        caption: How to read it.
        svg: The drawing, or None.
        image: A data URI, or empty.
        size: Of the image in pixels.
        pixels: Whether the image is small enough to be enlarged without smoothing.
    """

    id: str
    title: str
    description: str
    caption: str
    svg: Markup | None = None
    image: str = ""
    size: tuple[int, int] = (0, 0)
    pixels: bool = False
    missing: str = field(default="", init=False)


def drawn(
    draw: Callable[[], Figure], id: str, title: str, description: str, caption: str
) -> Picture | Missing:
    """A matplotlib figure as a picture, or what is said when matplotlib cannot draw its values."""
    try:
        with np.errstate(all="ignore"):
            # our own element; the text in it is escaped
            svg = Markup(style.to_svg(draw(), id, description))
    except UserError:
        raise
    except (ValueError, ArithmeticError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        return Missing(f"{title}: the figure cannot be drawn, its values are too extreme ({reason}).")
    return Picture(id, title, description, caption, svg=svg)


def embedded(path: Path, id: str, title: str, description: str, caption: str) -> Picture:
    """An image file as a picture: decoded and encoded anew, so that nothing but pixels enters the page.

    Raises:
        UserError: The file is no image that can be read; names it.
    """
    if not path.is_file():
        raise UserError(f"{path}: cannot be read as an image; it is not a regular file")
    try:
        with Image.open(path) as opened:
            image = opened.convert("RGB")
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise UserError(f"{path}: cannot be read as an image; it is damaged or was cut") from error
    if image.width > _WIDEST:
        image = image.resize(
            (_WIDEST, max(1, round(image.height * _WIDEST / image.width))), Image.Resampling.LANCZOS
        )
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    uri = "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")
    return Picture(
        id, title, description, caption, image=uri, size=image.size, pixels=image.width < _PIXEL_ART
    )
