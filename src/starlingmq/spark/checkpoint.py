"""What the sink keeps beside the checkpoint of its query: a small file, on any file system that pyarrow opens."""

from __future__ import annotations

import logging
import os
from typing import Any, Final

import msgspec
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.fs as pafs  # type: ignore[import-untyped]

from starlingmq.spark.placing import FILE, Placement

log = logging.getLogger("starlingmq.spark")
SCHEMES: Final = {"s3a": "s3", "s3n": "s3"}  # Hadoop's name of a scheme, and that of pyarrow
WHOLE: Final = ("s3", "gcs", "abfs")  # object stores: a file is there when it is complete, and a move is a copy
OFFSETS: Final = "offsets"  # Spark writes a file of this directory before it begins a batch


class Checkpoint:
    """``location``: as Spark has it. Without one, or on a file system that is not opened, nothing is kept."""

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
        """Raises OSError, msgspec.MsgspecError."""
        if self._files is None:
            return Placement()
        try:
            with self._files.open_input_stream(f"{self._root}/{FILE}") as file:
                return msgspec.json.decode(file.readall(), type=Placement)
        except FileNotFoundError:
            return Placement()

    def write(self, places: Placement) -> None:
        """Whoever reads finds the whole of it, or of the one before. Raises OSError."""
        if self._files is None:
            return
        if self._files.type_name in WHOLE:
            with self._files.open_output_stream(f"{self._root}/{FILE}") as file:
                file.write(msgspec.json.encode(places))
            return
        self._files.create_dir(self._root)
        with self._files.open_output_stream(f"{self._root}/.{FILE}.tmp") as file:
            file.write(msgspec.json.encode(places))
        self._files.move(f"{self._root}/.{FILE}.tmp", f"{self._root}/{FILE}")

    def begun(self) -> int:
        """The last batch that may have begun; -1 if none has."""
        if self._files is None:
            return -1
        found = self._files.get_file_info(pafs.FileSelector(f"{self._root}/{OFFSETS}", allow_not_found=True))
        return max((int(info.base_name) for info in found if info.base_name.isdecimal()), default=-1)
