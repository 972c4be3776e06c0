"""One process or several, and leaving them in order."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from types import FrameType

from flowtempo.cli.console import console
from flowtempo.runtime import Runtime
from flowtempo.training.probing import share_of
from flowtempo.variance.share import Share


@contextlib.contextmanager
def shared_work() -> Iterator[Share]:
    """This process's part of the work, when torchrun or `accelerate launch` started several.

    Only the first one prints. SIGTERM unwinds the stack as Ctrl-C does, so that finished work is kept.
    """
    before = signal.signal(signal.SIGTERM, _leave)
    try:
        if int(os.environ.get("WORLD_SIZE", "1")) == 1:
            yield Share()
            return
        runtime = Runtime()
        console.quiet = runtime.rank > 0
        yield share_of(runtime)
        runtime.barrier()
        runtime.close()
    finally:
        signal.signal(signal.SIGTERM, before)


def _leave(number: int, _: FrameType | None) -> None:
    sys.exit(128 + number)
