"""Schemas by id, from the files of a directory."""

from __future__ import annotations

from pathlib import Path

from starlingmq.spark.option_error import OptionError
from starlingmq.spark.proto_compiler import compile_proto
from starlingmq.spark.schema_registry import AVRO, RegistrySchema, SchemaError


class SchemaFiles:
    """The schemas of a directory, read on the driver."""

    def __init__(self, schemas: dict[str, RegistrySchema]) -> None:
        self.schemas = schemas

    def find(self, id: int) -> RegistrySchema:
        found = self.schemas.get(str(id))
        if found is None:
            raise SchemaError(f"schema {id} is unknown")
        return found


def read_directory(directory: str, format: str) -> dict[str, RegistrySchema]:
    """Read ``ID.avsc``, or for protobuf ``ID.proto``. Raises OptionError."""
    suffix = "avsc" if format == "avro" else "proto"
    files = [file for file in sorted(Path(directory).glob(f"*.{suffix}")) if file.stem.isdecimal()]
    if not files:
        raise OptionError(f"schema_file: {directory} has no files named ID.{suffix}")
    try:
        if format == "avro":
            return {_id(file): RegistrySchema(AVRO, file.read_text(encoding="utf-8")) for file in files}
    except (OSError, UnicodeDecodeError) as error:
        raise OptionError(f"schema_file: {directory} cannot be read: {error}") from None
    return {_id(file): compile_proto(file) for file in files}


def _id(file: Path) -> str:
    return str(int(file.stem))
