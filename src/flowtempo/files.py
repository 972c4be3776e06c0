"""Writing files so that an interruption never leaves half of one, and reading what a person hands in."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from flowtempo.errors import UserError


@contextlib.contextmanager
def atomic_write(path: str | os.PathLike[str], mode: str = "w") -> Iterator[IO[Any]]:
    """Open a file beside `path` and rename it to `path` once everything is on the disk.

    Args:
        path: The final name. Missing parent folders are made.
        mode: `"w"` (UTF-8 text) or `"wb"`.

    Yields:
        The open file. If the block raises, the old file (if any) stays and the new one is removed.
    """
    final = Path(path)
    final.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=final.parent, prefix=f".{final.name}.")
    try:
        with os.fdopen(handle, mode, encoding=None if "b" in mode else "utf-8") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, final)
    except BaseException as error:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise _named(error, temporary, final) from None
    _sync_folder(final.parent)


@contextlib.contextmanager
def atomic_folder(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Fill a folder beside `path` and rename it to `path` once every file in it is on the disk.

    A folder that already stands at `path` is replaced only after the new one is complete.

    Yields:
        The temporary folder to write into.
    """
    final = Path(path)
    final.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(dir=final.parent, prefix=f".{final.name}."))
    try:
        yield temporary
        for file in temporary.rglob("*"):
            if file.is_file():
                with open(file, "rb") as opened:
                    os.fsync(opened.fileno())
        os.chmod(temporary, 0o777 & ~_umask())
        _sync_folder(temporary)
        replaced = temporary.with_name(f"{temporary.name}.replaced")
        if final.exists():
            os.replace(final, replaced)
        os.replace(temporary, final)
        shutil.rmtree(replaced, ignore_errors=True)
    except BaseException as error:
        shutil.rmtree(temporary, ignore_errors=True)
        raise _named(error, str(temporary), final) from None
    _sync_folder(final.parent)


def read_json(path: str | os.PathLike[str], expected: str = "") -> Any:
    """Read a JSON file.

    Args:
        path: The file.
        expected: What it should hold, such as "an evaluation record", for the message.

    Raises:
        UserError: It is missing, no regular file (a pipe would block), or not JSON; names the file.
    """
    name = os.fspath(path)
    told = f"{name}: not {expected}: it is" if expected else f"{name}: is"
    if os.path.exists(name) and not os.path.isfile(name):
        raise UserError(f"{name}: cannot be read: not a regular file")
    try:
        with open(name, encoding="utf-8") as file:
            return json.load(file)
    except OSError as error:
        raise UserError(f"{name}: cannot be read: {error.strerror}") from error
    except RecursionError as error:
        raise UserError(f"{told} not JSON that is meant here (nested too deeply)") from error
    except ValueError as error:
        raise UserError(f"{told} not JSON, or was cut short ({error})") from error


def _named(error: BaseException, temporary: str, final: Path) -> BaseException:
    """An operating-system error about the file beside, or about none, as one about the file asked for."""
    if not isinstance(error, OSError) or error.errno is None:
        return error
    if error.filename is not None and not str(error.filename).startswith(temporary):
        return error
    return OSError(error.errno, error.strerror, str(final))


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
