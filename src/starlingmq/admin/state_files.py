"""Small files in the data directory that survive a restart."""

from __future__ import annotations

import os
from pathlib import Path

from starlingmq.storage.maintenance.file_copy import sync_directory


def replace(path: Path, data: bytes) -> None:
    """Replace the file atomically: afterwards the new one is on the disk. Blocks; raises OSError."""
    new = path.with_suffix(".new")
    handle = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
    sync_directory(path.parent)
