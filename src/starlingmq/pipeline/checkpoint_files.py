"""Files that a pipeline stores in the checkpoint of its query, on any file system of Spark: ``s3a``, ``abfs``, HDFS.

Spark's own manager of checkpoint files writes them, so their file system is reached with the settings that reach the
checkpoint, and a file appears when it is complete. The sink of topics has no Java where it plans its batches, and uses
``starlingmq.spark.checkpoint``.
"""

from __future__ import annotations

from typing import Any, Final

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.sql import SparkSession

from starlingmq.spark.option_error import OptionError

PACKAGE: Final = "org.apache.spark.sql.execution.streaming.checkpointing"
COMMITS: Final = "commits"  # of completed batches, in Spark's checkpoint
OFFSETS: Final = "offsets"  # Spark writes a file in this directory before it begins a batch


class CheckpointError(OptionError):
    """A file of a checkpoint cannot be read or written."""


class CheckpointFiles:
    def __init__(self, spark: SparkSession, root: str) -> None:
        """Raises CheckpointError: there is no such file system."""
        context: Any = spark.sparkContext
        self._jvm = context._jvm
        self._root = root
        jvm_package = self._jvm
        for part in PACKAGE.split("."):
            jvm_package = getattr(jvm_package, part)
        try:
            self._manager = jvm_package.CheckpointFileManager.create(self._path(""), context._jsc.hadoopConfiguration())
        except Py4JJavaError as error:
            raise self._error(error) from None

    def read_file(self, name: str) -> bytes | None:
        """Return a file's content; None if there is none. Raises CheckpointError."""
        try:
            path = self._path(name)
            if not self._manager.exists(path):
                return None
            source = self._manager.open(path)
            try:
                return bytes(source.readAllBytes())
            finally:
                source.close()
        except Py4JJavaError as error:
            raise self._error(error) from None

    def write_file(self, name: str, content: bytes) -> None:
        """Write it atomically: a reader finds this content or the previous one, complete. Raises CheckpointError."""
        try:
            path = self._path(name)
            self._manager.mkdirs(path.getParent())
            out = self._manager.createAtomic(path, True)
            try:
                out.write(content)
            except Py4JJavaError:
                out.cancel()
                raise
            out.close()
        except Py4JJavaError as error:
            raise self._error(error) from None

    def begun(self) -> int:
        """Return the last batch that may have begun; -1 if none has. Raises CheckpointError."""
        return max(self.numbers(OFFSETS), default=-1)

    def numbers(self, directory: str) -> list[int]:
        """Return the batches of one of Spark's logs, compacted ones as their last. Raises CheckpointError."""
        names = self.names(directory)
        return [int(number) for name in names if (number := name.removesuffix(".compact")).isdecimal()]

    def names(self, directory: str) -> list[str]:
        """Return what is in a directory, "" for the root. Raises CheckpointError."""
        try:
            path = self._path(directory)
            if not self._manager.exists(path):
                return []
            return [str(status.getPath().getName()) for status in self._manager.list(path)]
        except Py4JJavaError as error:
            raise self._error(error) from None

    def _path(self, name: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(f"{self._root}/{name}" if name else self._root)

    def _error(self, error: Py4JJavaError) -> CheckpointError:
        return CheckpointError(f"{self._root}: {error.java_exception.toString().splitlines()[0]}")
