"""Steps written in Python: a StatefulProcessor of PySpark, from a file beside the pipeline file."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from pyspark import cloudpickle
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from starlingmq.config.section_types import ConfigError
from starlingmq.pipeline.config import StatefulConfig
from starlingmq.spark.state_store import use_rocksdb

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TIMES: Final = {"none": "none", "processing": "ProcessingTime", "event": "EventTime"}


def read_processor(pipeline: str | Path, processor: str) -> type[StatefulProcessor]:
    """Return the class that ``FILE.py:CLASS`` names, by a path from the pipeline file. Raises ConfigError."""
    name, _, wanted = processor.rpartition(":")
    file = Path(pipeline).parent / name
    module = _load(file)
    found = getattr(module, wanted, None)
    if not (isinstance(found, type) and issubclass(found, StatefulProcessor)):
        raise ConfigError(f"{file} has no class {wanted} derived from pyspark's StatefulProcessor")
    by_value: Any = cloudpickle.register_pickle_by_value
    by_value(module)  # workers do not have the file
    return found


def _load(file: Path) -> ModuleType:
    name = f"starlingmq_processor_{file.stem}"
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{file} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # the pickler looks there
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # of the user's code
        del sys.modules[name]
        raise ConfigError(f"{file} cannot be imported: {type(error).__name__}: {error}") from None
    return module


def with_state(
    spark: SparkSession, stateful: StatefulConfig, processor: type[StatefulProcessor], mode: str
) -> DataFrame:
    """Return the rows that the processor makes. Timers and state of a key are kept in the checkpoint, by RocksDB."""
    use_rocksdb(spark)
    groups: Any = spark.table(stateful.input).groupBy(*stateful.key)
    found: DataFrame = groups.transformWithStateInPandas(
        statefulProcessor=processor(),
        outputStructType=stateful.schema,
        outputMode=mode.capitalize(),
        timeMode=TIMES[stateful.time],
    )
    return found
