"""One process at a time in a run folder."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from pathlib import Path
from types import TracebackType

from flowtempo.errors import UserError
from flowtempo.runtime import Runtime

LOCK = ".lock"
_BUSY = {errno.EAGAIN, errno.EACCES}
_UNSUPPORTED = {errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS}


class FolderLock:
    """Context that holds a lock on a file in the run folder; only the main process takes it.

    The system drops the lock of a process that dies. A file system without locks is used without one.

    Args:
        folder: The run folder, which is made if need be.
        runtime: This process; all of them enter the context together.
    """

    def __init__(self, folder: Path, runtime: Runtime) -> None:
        self._folder = folder
        self._runtime = runtime
        self._descriptor: int | None = None

    def __enter__(self) -> FolderLock:
        import torch

        free = True
        if self._runtime.is_main:
            self._folder.mkdir(parents=True, exist_ok=True)
            free = self._take()
        # Every process ends, not only the one that looked.
        if int(self._runtime.sum(torch.tensor(int(not free), device=self._runtime.device))):
            raise busy(self._folder)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._descriptor is None:
            return
        # Removed while it is still locked: whoever opened it before will see that it is gone and try again.
        with contextlib.suppress(OSError):
            os.unlink(self._folder / LOCK)
        os.close(self._descriptor)
        self._descriptor = None

    def _take(self) -> bool:
        while True:
            descriptor = os.open(self._folder / LOCK, os.O_RDWR | os.O_CREAT, 0o666)
            if not _flock(descriptor, fcntl.LOCK_EX):
                os.close(descriptor)
                return False
            if _is_file(descriptor, self._folder / LOCK):
                self._descriptor = descriptor
                return True
            os.close(descriptor)


def busy(folder: Path) -> UserError:
    """What is told to the second process."""
    return UserError(f"{folder} is in use by another process: wait until it ends, or name another run folder")


def is_busy(folder: Path) -> bool:
    """Whether another process holds the lock now."""
    try:
        descriptor = os.open(folder / LOCK, os.O_RDONLY)
    except OSError:
        return False
    try:
        return not _flock(descriptor, fcntl.LOCK_SH)
    finally:
        os.close(descriptor)


def _flock(descriptor: int, how: int) -> bool:
    try:
        fcntl.flock(descriptor, how | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _BUSY:
            return False
        if error.errno not in _UNSUPPORTED:
            raise
    return True


def _is_file(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False
