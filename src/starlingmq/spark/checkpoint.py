"""The state that the sink stores next to the checkpoint of its query: a small file, on any file system that pyarrow
supports.
"""

from __future__ import annotations

import logging
import os
from typing import Any, Final

import msgspec
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.fs as pafs  # type: ignore[import-untyped]

from starlingmq.spark.placing import FILE, Placement

log = logging.getLogger("starlingmq.spark")
SCHEMES: Final = {"s3a": "s3", "s3n": "s3"}  # scheme in Hadoop, scheme in pyarrow
WHOLE: Final = ("s3", "gcs", "abfs")  # object stores: a file appears when it is complete, and a move is a copy
OFFSETS: Final = "offsets"  # Spark writes a file in this directory before it begins a batch


class Checkpoint:
    """``location``: Spark's checkpoint location. Without one, or on an unsupported file system, nothing is stored."""

    def __init__(self, location: str) -> None:
        self._files: Any = None
        self._root = ""
        if not location:
            return
        if location.startswith("file:"):
            location = "/" + location.removeprefix("file:").lstrip("/")
        try:
            scheme, _, path = location.partition("://")
            where = f"{SCHEMES.get(scheme, scheme)}://{path}" if path else os.path.abspath(location)
            self._files, self._root = pafs.FileSystem.from_uri(where)
        except (pa.ArrowException, OSError) as error:
            log.warning(
                "the sink cannot store beside the checkpoint %s which node gets which rows (%s); do not "
                "change servers while a batch may be retried",
                location,
                error,
            )

    def read(self) -> Placement:
        """Read the state. Raises OSError, msgspec.MsgspecError."""
        found = self.read_file(FILE)
        return Placement() if found is None else msgspec.json.decode(found, type=Placement)

    def write(self, placement: Placement) -> None:
        """Raises OSError."""
        self.write_file(FILE, msgspec.json.encode(placement))

    def read_file(self, name: str) -> bytes | None:
        """Return a file beside the checkpoint; None if there is none. Raises OSError."""
        if self._files is None:
            return None
        try:
            with self._files.open_input_stream(f"{self._root}/{name}") as file:
                return bytes(file.readall())
        except FileNotFoundError:
            return None

    def write_file(self, name: str, content: bytes) -> None:
        """Write it atomically: a reader finds this content or the previous one, complete. Raises OSError."""
        if self._files is None:
            return
        if self._files.type_name in WHOLE:
            with self._files.open_output_stream(f"{self._root}/{name}") as file:
                file.write(content)
            return
        self._files.create_dir(self._root)
        with self._files.open_output_stream(f"{self._root}/.{name}.tmp") as file:
            file.write(content)
        self._files.move(f"{self._root}/.{name}.tmp", f"{self._root}/{name}")

    def begun(self) -> int:
        """Return the last batch that may have begun; -1 if none has."""
        if self._files is None:
            return -1
        found = self._files.get_file_info(pafs.FileSelector(f"{self._root}/{OFFSETS}", allow_not_found=True))
        return max((int(info.base_name) for info in found if info.base_name.isdecimal()), default=-1)
