"""A directory of files that one streaming query writes.

Spark's log in it (``_spark_metadata``) has the files of each batch, and a batch whose number the log has counts as
written: its rows are left out without an error. So a directory that has batches which are not those of the query is
refused::

    written by another query                      as after its checkpoint was deleted: a query has another id then
    batches that the checkpoint has not begun     an older copy of the checkpoint was restored, or, in a directory of an
                                                  earlier release, which has no id, the checkpoint was deleted
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from starlingmq.config.section_types import ConfigError
from starlingmq.pipeline.checkpoint_files import CheckpointFiles

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OWNER: Final = "_starlingmq_query"  # the id of the query; readers of the directory pass over names with _
LOG: Final = "_spark_metadata"
OF_SPARK: Final = "metadata"  # Spark's file in a checkpoint, with the id of its query


class TakenDirectory(ConfigError):
    """The directory has files of another query; one line that begins with the directory."""


class _Metadata(msgspec.Struct):
    id: str


class FileTarget:
    def __init__(self, spark: SparkSession, path: str) -> None:
        """Raises CheckpointError: there is no such file system."""
        self._path = path
        self._files = CheckpointFiles(spark, path)

    def check(self, checkpoint: CheckpointFiles) -> None:
        """Before the query of this checkpoint starts. Raises TakenDirectory, CheckpointError."""
        told = checkpoint.read_file(OF_SPARK)
        query = "" if told is None else msgspec.json.decode(told, type=_Metadata).id
        owner = self._owner()
        if owner and owner != query:
            raise self._taken(f"query {owner}, and the checkpoint is {f'of query {query}' if query else 'new'}")
        written = max(self._files.numbers(LOG), default=-1)
        begun = checkpoint.begun()
        if written > begun:
            raise self._taken(f"batches up to {written}, and the checkpoint has begun {begun + 1 or 'none'} of them")

    def claim(self, query: str) -> None:
        """The query of this id writes the directory from now on. Raises TakenDirectory, CheckpointError."""
        owner = self._owner()
        if not owner:
            self._files.write_file(OWNER, query.encode())
        elif owner != query:
            raise self._taken(f"query {owner}, and this is query {query}")

    def _owner(self) -> str:
        return (self._files.read_file(OWNER) or b"").decode().strip()

    def _taken(self, why: str) -> TakenDirectory:
        return TakenDirectory(
            f"{self._path}: has files of {why}. Spark would leave out the rows of batches with the same numbers: "
            "use another directory, or restore the checkpoint"
        )
