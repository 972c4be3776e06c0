"""JSON files with a schema version and a kind, written whole or not at all."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from os import PathLike, fspath
from typing import Any

from flowtempo.errors import UserError
from flowtempo.files import atomic_write, read_json

SCHEMA = 2


def save(path: str | PathLike[str], kind: str, content: Mapping[str, Any]) -> None:
    """Write `content` to `path`; floats come back bit for bit.

    Raises:
        UserError: If the content is not JSON (a NaN, an object), or the file cannot be written.
    """
    try:
        text = json.dumps({"schema": SCHEMA, "kind": kind, **content}, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise UserError(f"{fspath(path)}: the {kind} cannot be written as JSON ({error})") from error
    try:
        with atomic_write(path, "w") as file:
            file.write(text + "\n")
    except OSError as error:
        raise UserError(f"{fspath(path)}: cannot be written ({error.strerror})") from error


def load(path: str | PathLike[str], kind: str) -> dict[str, Any]:
    """Read what `save` wrote.

    Raises:
        UserError: If the file is missing, cut, not of this kind or of another schema version.
    """
    name = fspath(path)
    content = read_json(name)
    if not isinstance(content, dict) or "kind" not in content or "schema" not in content:
        raise UserError(f"{name}: is no {kind} of flowtempo (it has no kind and schema)")
    if content["kind"] != kind:
        raise UserError(f"{name}: is a {content['kind']}, but a {kind} is needed here")
    if content["schema"] != SCHEMA:
        raise UserError(
            f"{name}: has schema {content['schema']!r}, but this flowtempo reads {SCHEMA}: make it anew"
        )
    del content["kind"], content["schema"]
    return content


class Reader:
    """Takes the keys of a loaded object one by one, so that a missing, wrong or unknown one is named.

    Args:
        content: The object.
        where: What the messages start with, such as the file's name.

    Raises:
        UserError: From each method, if the key is missing or its value has another type; from the
            constructor, if `content` is no object.
    """

    def __init__(self, content: object, where: str) -> None:
        if not isinstance(content, dict):
            raise UserError(f"{where}: must be an object, not {type(content).__name__}")
        self._left = dict(content)
        self._where = where

    def value(self, key: str) -> Any:
        """Whatever stands there."""
        if key not in self._left:
            raise UserError(f"{self._where}: the key {key!r} is missing")
        return self._left.pop(key)

    def text(self, key: str) -> str:
        """A string."""
        value = self.value(key)
        return value if isinstance(value, str) else self._wrong(key, "a string", value)

    def number(self, key: str) -> float:
        """A number."""
        value = self.value(key)
        return float(value) if _is_number(value) else self._wrong(key, "a number", value)

    def whole(self, key: str) -> int:
        """A whole number."""
        value = self.value(key)
        good = isinstance(value, int) and not isinstance(value, bool)
        return int(value) if good else self._wrong(key, "a whole number", value)

    def numbers(self, key: str) -> list[float]:
        """A list of numbers."""
        value = self.value(key)
        good = isinstance(value, list) and all(_is_number(item) for item in value)
        return [float(item) for item in value] if good else self._wrong(key, "a list of numbers", value)

    def optional_numbers(self, key: str) -> list[float] | None:
        """A list of numbers, or null."""
        return self.value(key) if self._left.get(key, 0) is None else self.numbers(key)

    def optional_rows(self, key: str) -> list[list[float]] | None:
        """A list of lists of numbers of one length, or null."""
        value = self.value(key)
        if value is None:
            return None
        rows = value if isinstance(value, list) and all(isinstance(row, list) for row in value) else []
        good = (
            rows and len({len(row) for row in rows}) == 1 and all(_is_number(n) for row in rows for n in row)
        )
        return (
            [[float(n) for n in row] for row in rows] if good else self._wrong(key, "rows of numbers", value)
        )

    def mapping(self, key: str) -> dict[str, Any]:
        """An object."""
        value = self.value(key)
        return value if isinstance(value, dict) else self._wrong(key, "an object", value)

    def end(self) -> None:
        """Check that nothing is left over."""
        if self._left:
            raise UserError(f"{self._where}: unknown key {next(iter(self._left))!r}")

    def _wrong(self, key: str, wanted: str, value: object) -> Any:
        found = "too large an integer" if isinstance(value, int) and wanted == "a number" else ""
        if isinstance(value, list) and all(isinstance(item, (int, float)) for item in value):
            found = "one with booleans or integers too large for a float"
        raise UserError(f"{self._where}: {key!r} must be {wanted}, not {found or type(value).__name__}")


def _is_number(value: object) -> bool:
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return False
    return isinstance(value, float) or abs(value) <= sys.float_info.max  # float() refuses larger integers
