"""The wanted fields of Protobuf messages as Python values, for Arrow.

What a field needs is decided once for each kind of message, since asking its descriptor costs more than its value.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any, Final

from pyspark.sql.types import ArrayType, DataType, MapType, StringType, StructType

Value = Callable[[Any], Any]
Fields = Callable[[Any], dict[str, Any]]
KINDS_MAX: Final = 1000  # of messages: those of a schema registry
TIMESTAMP: Final = "google.protobuf.Timestamp"


def fields_reader(fields: StructType) -> Fields:
    """Return the function that makes a map of a message: its wanted fields, without those that are not set, where the
    message knows that.
    """
    readers: dict[Any, Fields] = {}

    def read(message: Any) -> dict[str, Any]:
        kind = message.DESCRIPTOR
        reader = readers.get(kind)
        if reader is None:
            if len(readers) >= KINDS_MAX:
                readers.clear()
            reader = readers[kind] = _reader(kind, fields)
        return reader(message)

    return read


def _reader(descriptor: Any, fields: StructType) -> Fields:
    known = descriptor.fields_by_name
    always: list[str] = []  # have a value, which is taken as it is
    others: list[tuple[str, bool, Value | None]] = []
    for field in fields.fields:
        described = known.get(field.name)
        if described is None:
            continue
        value = _value(described, field.dataType)
        if value is None and not described.has_presence:
            always.append(field.name)
        else:
            others.append((field.name, described.has_presence, value))
    get = _getter(always)

    def read(message: Any) -> dict[str, Any]:
        found: dict[str, Any] = dict(zip(always, get(message), strict=True))
        for name, has_presence, value in others:
            if not has_presence or message.HasField(name):
                found[name] = getattr(message, name) if value is None else value(getattr(message, name))
        return found

    return read


def _getter(names: list[str]) -> Callable[[Any], tuple[Any, ...]]:
    if not names:
        return lambda message: ()
    get = attrgetter(*names)
    return get if len(names) > 1 else lambda message: (get(message),)


def _value(described: Any, wanted: DataType) -> Value | None:
    """Return what makes a column's value of a field's: a list of a repeated field, pairs of a map; None: nothing."""
    if not described.is_repeated:
        return _single(described, wanted)
    if isinstance(wanted, MapType):
        if described.message_type is None or not described.message_type.GetOptions().map_entry:
            return _refusing(f"{described.name} is not a map")
        value = _single(described.message_type.fields_by_name["value"], wanted.valueType)
        return lambda found: [(key, each if value is None else value(each)) for key, each in found.items()]
    if not isinstance(wanted, ArrayType):
        return _refusing(f"{described.name} is repeated, or a map; the column must be array or map")
    element = _single(described, wanted.elementType)
    return list if element is None else lambda found: [element(each) for each in found]


def _single(described: Any, wanted: DataType) -> Value | None:
    """The same for a value, or one of a repeated field. Enums are names in a string column; a number that the enum does
    not know, as newer writers send, is its digits there.
    """
    if described.message_type is not None and described.message_type.full_name == TIMESTAMP:
        return lambda value: value.ToDatetime()
    if described.enum_type is not None and isinstance(wanted, StringType):
        names = {number: value.name for number, value in described.enum_type.values_by_number.items()}
        return lambda value: names.get(value, str(value))
    if isinstance(wanted, StructType):
        return fields_reader(wanted)
    return None


def _refusing(words: str) -> Value:
    """Each payload has this reason."""

    def refuse(value: Any) -> Any:
        raise ValueError(words)

    return refuse
