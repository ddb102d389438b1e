"""The path of the control socket, for those who connect to it: they do not load the server."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

NAME: Final = "control.sock"
PATH_BYTES_MAX: Final = 100  # the limit of the system is 107


@contextmanager
def reachable(path: Path) -> Iterator[str]:
    """A path of the socket that is short enough for the system, for as long as the block lasts."""
    if len(os.fsencode(path)) <= PATH_BYTES_MAX:
        yield str(path)
        return
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{directory}/{path.name}"
    finally:
        os.close(directory)
