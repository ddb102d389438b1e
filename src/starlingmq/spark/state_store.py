"""Where Spark keeps the state of steps in Python: only RocksDB can."""

from __future__ import annotations

from typing import Final

from pyspark.sql import SparkSession

PROVIDER: Final = "spark.sql.streaming.stateStore.providerClass"
ROCKSDB: Final = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


def use_rocksdb(spark: SparkSession) -> None:
    spark.conf.set(PROVIDER, ROCKSDB)
