"""Decodes binary payloads into columns: Avro, Protobuf, CBOR, MessagePack, in batches of Arrow arrays.

A decoder turns a payload into a mapping from field name to value. Arrow converts these to the types of the columns; a
field that is absent is null. A payload that cannot be decoded, or has a value of another type, has a reason instead.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import StringType, StructField, StructType

from starlingmq.spark.column_names import check_names, comparison, kept_columns, refuse_other_case
from starlingmq.spark.framed_payloads import framed_avro, framed_protobuf
from starlingmq.spark.msgpack_keys import decode_once
from starlingmq.spark.option_error import OptionError
from starlingmq.spark.payloads import MALFORMED, WHOLE
from starlingmq.spark.protobuf_fields import fields_reader
from starlingmq.spark.schema_directory import SchemaFiles, read_directory
from starlingmq.spark.schema_registry import RegistryError, RegistryOptions, RegistrySchema
from starlingmq.spark.value_rules import check_units, epoch_reader

Decoder = Callable[[bytes], Any]
FORMATS: Final = ("avro", "protobuf", "cbor", "msgpack")
FRAMINGS: Final = ("none", "confluent")
VALUE: Final = "value"
REASON_CHARACTERS_MAX: Final = 200


class BinaryFormat(msgspec.Struct, frozen=True, kw_only=True):
    """``columns``: JSON of their StructType, since tasks cannot parse SQL. ``writer``: JSON of the Avro schema.
    ``descriptors``: a FileDescriptorSet, of which ``message`` is the full name of a message. With framing instead:
    ``registry``, or ``schemas`` by id. ``units``: by path of a timestamp, what its numbers count.
    """

    name: str
    columns: str
    framing: str = "none"
    writer: str = ""
    descriptors: bytes = b""
    message: str = ""
    registry: RegistryOptions | None = None
    schemas: dict[str, RegistrySchema] = {}
    units: dict[str, str] = {}

    @property
    def fields(self) -> StructType:
        return StructType.fromJson(json.loads(self.columns))


def read_format(
    name: str,
    fields: StructType,
    schema_file: str,
    message: str,
    framing: str,
    registry: RegistryOptions | None = None,
    timestamp_unit: Mapping[str, str] | None = None,
) -> BinaryFormat:
    """Read the files of a format: ``schema_file`` is an Avro schema, or the output of ``protoc --descriptor_set_out``.
    With framing it is a directory of schemas (``read_directory``), unless there is a registry. Raises OptionError.
    """
    columns = fields.json()
    units = dict(timestamp_unit or {})
    check_units(fields, units)
    if framing == "confluent":
        schemas = {} if registry else read_directory(schema_file, name)
        return BinaryFormat(
            name=name,
            columns=columns,
            framing=framing,
            message=message,
            registry=registry,
            schemas=schemas,
            units=units,
        )
    try:
        if name == "avro":
            writer = Path(schema_file).read_text(encoding="utf-8")
            return BinaryFormat(name=name, columns=columns, writer=writer, units=units)
        if name == "protobuf":
            descriptors = Path(schema_file).read_bytes()
            return BinaryFormat(name=name, columns=columns, descriptors=descriptors, message=message, units=units)
    except OSError as error:
        raise OptionError(f"schema_file: {schema_file} cannot be read: {error.strerror}") from None
    return BinaryFormat(name=name, columns=columns, units=units)


def decode_binary(rows: DataFrame, format: BinaryFormat) -> DataFrame:
    """Return rows with a column for each field in place of ``payload``, and the reason in ``_malformed``, which is null
    for payloads that were decoded. Raises OptionError.
    """
    fields = format.fields
    compared = comparison(rows.sparkSession)
    check_names(fields, compared, (MALFORMED, WHOLE))
    decoder(format)  # its errors belong to the driver
    result = StructType([StructField(VALUE, fields), StructField(MALFORMED, StringType())])
    arrow_type = to_arrow_type(fields, timezone="UTC")

    any_case = compared is not str

    def decode(payloads: pa.Array) -> pa.Array:
        read = decoder(format)
        return decoded_array(of_this_case(read, fields) if any_case else read, arrow_type, payloads)

    found = rows.withColumn("_decoded", by_arrow(decode, result))
    value = F.col("_decoded").getField(VALUE)
    columns = [value.getField(name).alias(name) for name in fields.fieldNames()]
    kept = kept_columns(rows.columns, fields.fieldNames(), compared)
    return found.select(*columns, *kept, F.col(f"_decoded.{MALFORMED}").alias(MALFORMED))


def of_this_case(read: Decoder, fields: StructType) -> Decoder:
    """Return a decoder that refuses values with a key that differs from the name of a field by case only."""

    def decode(payload: bytes) -> Any:
        value = read(payload)
        refuse_other_case(value, fields)
        return value

    return decode


def by_arrow(function: Callable[..., pa.Array], type: StructType, *columns: str) -> Column:
    """Return the column that a function makes of the payloads, batch by batch; or of other columns."""
    udf: Any = arrow_udf
    column: Column = udf(function, type)(*(columns or ("payload",)))
    return column


def decoded_array(decode: Decoder, type: pa.DataType, payloads: pa.Array) -> pa.Array:
    """Return an array of value and reason."""
    values: list[Any] = []
    reasons: list[str | None] = []
    for payload in payloads.to_pylist():
        try:
            value = decode(payload)
            if not isinstance(value, dict):
                raise ValueError("it is not a map of fields")
            values.append(value)
            reasons.append(None)
        except RegistryError:  # the payload may be good
            raise
        except Exception as error:  # of whichever library
            values.append(None)
            reasons.append(reason(error))
    try:
        array = pa.array(values, type)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        array = _each(values, reasons, type)
    return pa.StructArray.from_arrays([array, pa.array(reasons, pa.string())], [VALUE, MALFORMED])


def _each(values: list[Any], reasons: list[str | None], type: pa.DataType) -> pa.Array:
    """Convert the values one by one, since some do not fit the columns."""
    for index, value in enumerate(values):
        try:
            pa.array([value], type)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            values[index] = None
            reasons[index] = reason(error)
    return pa.array(values, type)


def reason(error: Exception) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return f"the payload cannot be decoded: {text}"[:REASON_CHARACTERS_MAX]


def decoder(format: BinaryFormat) -> Decoder:
    """Raises OptionError."""
    make = {"avro": _avro, "protobuf": _protobuf, "cbor": _cbor, "msgpack": _msgpack}[format.name]
    try:
        decode = make(format)
    except ImportError as error:
        raise OptionError(
            f"decode: {format.name} needs {error.name}; run pip install '.[payloads]' in the sources"
        ) from None
    times = epoch_reader(format.fields, format.units)
    return decode if times is None else lambda payload: times(decode(payload))


def _msgpack(format: BinaryFormat) -> Decoder:
    return decode_once


def _cbor(format: BinaryFormat) -> Decoder:
    import cbor2

    def decode(payload: bytes) -> Any:
        source = io.BytesIO(payload)
        value = cbor2.load(source, allow_duplicate_keys=False)
        if source.tell() != len(payload):
            raise ValueError("bytes follow the value")
        return value

    return decode


def _avro(format: BinaryFormat) -> Decoder:
    import fastavro

    if format.framing == "confluent":
        return framed_avro(format.registry or SchemaFiles(format.schemas))
    try:
        schema = fastavro.parse_schema(json.loads(format.writer))
    except (ValueError, fastavro.schema.SchemaParseException) as error:
        raise OptionError(f"schema_file: not an Avro schema: {error}") from None

    def decode(payload: bytes) -> Any:
        source = io.BytesIO(payload)
        value = fastavro.schemaless_reader(source, schema, None)
        if source.tell() != len(payload):
            raise ValueError("bytes follow the value")
        return value

    return decode


def _protobuf(format: BinaryFormat) -> Decoder:
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
    from google.protobuf.message import DecodeError

    read = fields_reader(format.fields)
    if format.framing == "confluent":
        source = format.registry or SchemaFiles(format.schemas)
        return framed_protobuf(source, format.message, read)
    pool = descriptor_pool.DescriptorPool()
    try:
        for file in descriptor_pb2.FileDescriptorSet.FromString(format.descriptors).file:
            pool.Add(file)
        kind = message_factory.GetMessageClass(pool.FindMessageTypeByName(format.message))
    except (DecodeError, TypeError) as error:
        raise OptionError(f"schema_file: not the output of protoc --descriptor_set_out: {error}") from None
    except KeyError:
        raise OptionError(f"message: the descriptors have no message {format.message}") from None

    def decode(payload: bytes) -> Any:
        return read(kind.FromString(payload))

    return decode
