"""Payloads framed for a schema registry: byte 0, the id of the schema in four bytes, and the body.

A Protobuf body begins with the path of its message in the file: a count and the indexes from the outermost message
inwards, as zigzag numbers; a count of 0 stands for the first message.
"""

from __future__ import annotations

import base64
import io
from collections import OrderedDict
from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any, Final, TypeVar

from starlingmq.spark.schema_registry import (
    AVRO,
    PROTOBUF,
    SCHEMAS_MAX,
    RegistryOptions,
    RegistrySchema,
    SchemaError,
    SchemaRegistry,
    Schemas,
    avro_schema,
)

T = TypeVar("T")
MAGIC: Final = b"\x00"
FRAME_BYTES: Final = 5
DEPTH_MAX: Final = 32  # of the path of a message
NUMBER_BYTES_MAX: Final = 5


def unframed(payload: bytes) -> tuple[int, bytes]:
    """Return the schema id and the body. Raises ValueError."""
    if len(payload) < FRAME_BYTES or payload[:1] != MAGIC:
        raise ValueError("it has no schema id")
    return int.from_bytes(payload[1:FRAME_BYTES]), payload[FRAME_BYTES:]


@lru_cache(maxsize=16)
def registry_of(options: RegistryOptions) -> SchemaRegistry:
    """Return the registry of this process."""
    return SchemaRegistry(options)


class ById:
    """Decoders (or their parts) made of schemas, by id; bounded."""

    def __init__(self, schemas: Schemas, kind: str, make: Callable[[RegistrySchema], Any]) -> None:
        self._schemas = schemas
        self._kind = kind
        self._make = make
        self._made: OrderedDict[int, Any] = OrderedDict()

    def get(self, id: int) -> Any:
        made = self._made.get(id)
        if made is None:
            schema = self._schemas.find(id)
            if schema.kind != self._kind:
                raise SchemaError(f"schema {id} is of {schema.kind}, not of {self._kind}")
            try:
                made = self._make(schema)
            except SchemaError as error:
                raise SchemaError(f"schema {id}: {error}") from None
            self._made[id] = made
            if len(self._made) > SCHEMAS_MAX:
                self._made.popitem(last=False)
        return made


@cache
def _of_registry(options: RegistryOptions, kind: str) -> ById:
    """Kept from batch to batch."""
    return ById(registry_of(options), kind, avro_schema if kind == AVRO else proto_pool)


def by_id(schemas: Schemas | RegistryOptions, kind: str) -> ById:
    if isinstance(schemas, RegistryOptions):
        return _of_registry(schemas, kind)
    return ById(schemas, kind, avro_schema if kind == AVRO else proto_pool)


def framed_avro(schemas: Schemas | RegistryOptions) -> Callable[[bytes], Any]:
    import fastavro

    found = by_id(schemas, AVRO)

    def decode(payload: bytes) -> Any:
        id, body = unframed(payload)
        schema = found.get(id)
        source = io.BytesIO(body)
        value = fastavro.schemaless_reader(source, schema, None)
        if source.tell() != len(body):
            raise ValueError("bytes follow the value")
        return value

    return decode


def framed_protobuf(
    schemas: Schemas | RegistryOptions, message: str, fields_of: Callable[[Any], Any]
) -> Callable[[bytes], Any]:
    """``message``: the name of the only message that is read; "": any. ``fields_of`` makes a map of a message."""
    found = by_id(schemas, PROTOBUF)

    def decode(payload: bytes) -> Any:
        id, body = unframed(payload)
        path, at = message_path(body)
        made = found.get(id).message(path)
        if message and message != made.DESCRIPTOR.full_name:
            raise ValueError(f"it is a message {made.DESCRIPTOR.full_name}")
        return fields_of(made.FromString(body[at:]))

    return decode


def message_path(body: bytes) -> tuple[tuple[int, ...], int]:
    """Return the path of the message, and the length of its encoding. Raises ValueError."""
    count, at = _zigzag(body, 0)
    if not 0 <= count <= DEPTH_MAX:
        raise ValueError("its message index is not valid")
    path: list[int] = []
    for _ in range(count):
        index, at = _zigzag(body, at)
        path.append(index)
    return tuple(path) or (0,), at


def _zigzag(body: bytes, at: int) -> tuple[int, int]:
    number = 0
    for place, byte in enumerate(body[at : at + NUMBER_BYTES_MAX]):
        number |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return (number >> 1) ^ -(number & 1), at + place + 1
    raise ValueError("its message index is not valid")


class ProtoPool:
    """The messages of one file."""

    def __init__(self, messages: list[Any]) -> None:
        self._outermost = messages
        self._messages: dict[tuple[int, ...], Any] = {}

    def message(self, path: tuple[int, ...]) -> Any:
        """Return the class of a message. Raises ValueError."""
        made = self._messages.get(path)
        if made is None:
            from google.protobuf import message_factory

            found: Any = None
            below = self._outermost
            for index in path:
                if not 0 <= index < len(below):
                    raise ValueError("its message index names no message")
                found = below[index]
                below = list(found.nested_types)
            made = self._messages[path] = message_factory.GetMessageClass(found)
        return made


def proto_pool(schema: RegistrySchema) -> ProtoPool:
    """Raises SchemaError."""
    from google.protobuf import descriptor_pb2, descriptor_pool
    from google.protobuf.message import DecodeError

    pool = descriptor_pool.DescriptorPool()
    try:
        itself = descriptor_pb2.FileDescriptorProto.FromString(base64.b64decode(schema.text, validate=True))
        itself.name = itself.name or "schema.proto"
        files = [(name, base64.b64decode(text, validate=True)) for name, text in schema.references]
        added: set[str] = set()
        for name, data in files:
            file = descriptor_pb2.FileDescriptorProto.FromString(data)
            file.name = name
            _add(pool, file, added)
        _add(pool, itself, added)
        made = pool.FindFileByName(itself.name).message_types_by_name
        return ProtoPool([made[message.name] for message in itself.message_type])
    except (ValueError, TypeError, DecodeError, KeyError) as error:
        raise SchemaError(f"not the descriptors of a .proto file: {error}") from None


def _add(pool: Any, file: Any, added: set[str]) -> None:
    """Add a file, after those that Protobuf itself brings."""
    from google.protobuf import descriptor_pb2, descriptor_pool

    for name in file.dependency:
        if name not in added and name.startswith("google/protobuf/"):
            own = descriptor_pb2.FileDescriptorProto()
            descriptor_pool.Default().FindFileByName(name).CopyToProto(own)
            _add(pool, own, added)
    if file.name not in added:
        added.add(file.name)
        pool.Add(file)
