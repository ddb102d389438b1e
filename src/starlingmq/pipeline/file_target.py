"""A directory of files that one streaming query writes.

Spark's log in it (``_spark_metadata``) has the files of each batch, and a batch whose number the log has counts as
written: its rows are left out without an error. So a directory that has batches which are not those of the query is
refused::

    written by another query                      as after its checkpoint was deleted: a query has another id then
    batches that the checkpoint has not begun     an older copy of the checkpoint was restored, or, in a directory of an
                                                  earlier release, which has no id, the checkpoint was deleted
    files without a log                           readers of the directory would not see them any more
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from starlingmq.config.section_types import ConfigError
from starlingmq.pipeline.checkpoint_files import COMMITS, CheckpointFiles

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OWNER: Final = "_starlingmq_query"  # the id of the query; readers of the directory pass over names with _
LOG: Final = "_spark_metadata"
EMPTY: Final = b"v1"  # a batch without files in that log
MERGED: Final = "spark.sql.streaming.fileSink.log.compactInterval"  # batches after which Spark merges that log
OF_SPARK: Final = "metadata"  # Spark's file in a checkpoint, with the id of its query


class TakenDirectory(ConfigError):
    """The directory has files of another query; one line that begins with the directory."""


class _Metadata(msgspec.Struct):
    id: str


class FileTarget:
    def __init__(self, spark: SparkSession, path: str, own: str = "") -> None:
        """``own``: a directory of the pipeline in it. Raises CheckpointError: there is no such file system."""
        self._path = path
        self._own = own
        self._merged = int(spark.conf.get(MERGED, "10") or "10")
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
        if written < 0:
            strange = [name for name in self._files.names("") if name[0] not in "._" and name != self._own]
            if strange:
                raise TakenDirectory(
                    f"{self._path}: has {strange[0]}, which no query wrote and readers of the directory would not see "
                    "any more; use another directory"
                )
            self._begin_at(max(checkpoint.numbers(COMMITS), default=-1) + 1)

    def _begin_at(self, number: int) -> None:
        """Say in Spark's log that the batches before this one have no files here: readers, and Spark when it merges
        the log, look for them."""
        merged = number - number % self._merged
        if merged:
            self._files.write_file(f"{LOG}/{merged - 1}.compact", EMPTY)
        for before in range(merged, number):
            self._files.write_file(f"{LOG}/{before}", EMPTY)

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
