"""The state that the sink stores next to the checkpoint of its query: a small file, on any file system that pyarrow
supports.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import msgspec
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.fs as pafs  # type: ignore[import-untyped]

from starlingmq.spark.option_error import OptionError
from starlingmq.spark.placing import FILE, Placement

log = logging.getLogger("starlingmq.spark")
SCHEMES: Final = {"s3a": "s3", "s3n": "s3"}  # scheme in Hadoop, scheme in pyarrow
WHOLE: Final = ("s3", "gcs", "abfs")  # object stores: a file appears when it is complete, and a move is a copy
S3_HINT: Final = (
    "; the sink takes endpoint and credentials from the environment of the driver: AWS_ENDPOINT_URL, "
    "AWS_DEFAULT_REGION, AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY"
)
OFFSETS: Final = "offsets"  # Spark writes a file in this directory before it begins a batch


class Checkpoint:
    """``location``: Spark's checkpoint location. Without one, or on an unsupported file system, nothing is stored."""

    def __init__(self, location: str) -> None:
        """Raises OptionError: the object store cannot be reached."""
        self._files: Any = None
        self._root = ""
        self._location = location
        if not location:
            return
        if location.startswith("file:"):
            location = "/" + location.removeprefix("file:").lstrip("/")
        scheme, _, path = location.partition("://")
        where = f"{SCHEMES.get(scheme, scheme)}://{path}" if path else os.path.abspath(location)
        try:
            self._files, self._root = pafs.FileSystem.from_uri(where)
        except (pa.ArrowException, OSError) as error:
            if where.startswith("s3://"):  # it is there, with state or without
                raise self._unreachable(error) from None
            log.warning(
                "the sink cannot store beside the checkpoint %s which node gets which rows (%s); do not "
                "change servers while a batch may be retried",
                location,
                error,
            )

    def read(self) -> Placement:
        """Read the state. Raises OptionError, msgspec.MsgspecError."""
        found = self.read_file(FILE)
        return Placement() if found is None else msgspec.json.decode(found, type=Placement)

    def write(self, placement: Placement) -> None:
        """Raises OptionError."""
        self.write_file(FILE, msgspec.json.encode(placement))

    def read_file(self, name: str) -> bytes | None:
        """Return a file beside the checkpoint; None if there is none. Raises OptionError."""
        if self._files is None:
            return None
        try:
            with self._reached(), self._files.open_input_stream(f"{self._root}/{name}") as file:
                return bytes(file.readall())
        except FileNotFoundError:
            return None

    def write_file(self, name: str, content: bytes) -> None:
        """Write it atomically: a reader finds this content or the previous one, complete. Raises OptionError."""
        if self._files is None:
            return
        with self._reached():
            if self._files.type_name in WHOLE:
                self._write(name, content)
                return
            self._files.create_dir(self._root)
            self._write(f".{name}.tmp", content)
            self._files.move(f"{self._root}/.{name}.tmp", f"{self._root}/{name}")

    def _write(self, name: str, content: bytes) -> None:
        with self._files.open_output_stream(f"{self._root}/{name}") as file:
            file.write(content)

    def begun(self) -> int:
        """Return the last batch that may have begun; -1 if none has. Raises OptionError."""
        if self._files is None:
            return -1
        with self._reached():
            found = self._files.get_file_info(pafs.FileSelector(f"{self._root}/{OFFSETS}", allow_not_found=True))
        return max((int(info.base_name) for info in found if info.base_name.isdecimal()), default=-1)

    @contextmanager
    def _reached(self) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            raise
        except OSError as error:
            raise self._unreachable(error) from None

    def _unreachable(self, error: Exception) -> OptionError:
        hint = S3_HINT if self._location.startswith("s3") else ""
        return OptionError(f"checkpointLocation: {self._location}: {' '.join(str(error).split())}{hint}")
