"""The types of SQL that the broker's engine has: the same names and bounds as Spark's.

A value of each in Python::

    boolean                         bool
    tinyint smallint int bigint     int, within the bounds of INTEGERS
    double                          float
    string, binary                  str, bytes
    timestamp                       int: microseconds since 1970
    array<T>                        list
    struct<...>                     tuple, in the order of the fields
    void                            None: of the literal NULL

null is None in each. A decimal exists as a literal only, which becomes a double beside one.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

INTEGERS: Final = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}
"""Bits by name, narrow ones first."""
PLAIN: Final = (*INTEGERS, "double", "boolean", "string", "binary", "timestamp", "void", "decimal")


class SqlType(Struct, frozen=True):
    """``kind`` is one of PLAIN, "array" (with ``element``) or "struct" (with ``fields``)."""

    kind: str
    element: SqlType | None = None
    fields: tuple[tuple[str, SqlType], ...] = ()

    def __str__(self) -> str:
        if self.element is not None:
            return f"array<{self.element}>"
        if self.kind == "struct":
            return f"struct<{','.join(f'{name}:{type}' for name, type in self.fields)}>"
        return self.kind

    @property
    def is_integer(self) -> bool:
        return self.kind in INTEGERS

    @property
    def is_number(self) -> bool:
        return self.kind in INTEGERS or self.kind in ("double", "decimal")


BOOLEAN: Final = SqlType("boolean")
INT: Final = SqlType("int")
BIGINT: Final = SqlType("bigint")
DOUBLE: Final = SqlType("double")
DECIMAL: Final = SqlType("decimal")
STRING: Final = SqlType("string")
BINARY: Final = SqlType("binary")
TIMESTAMP: Final = SqlType("timestamp")
VOID: Final = SqlType("void")


def array_of(element: SqlType) -> SqlType:
    return SqlType("array", element)


def struct_of(fields: tuple[tuple[str, SqlType], ...]) -> SqlType:
    return SqlType("struct", None, fields)


def bounds(type: SqlType) -> tuple[int, int]:
    """The least and the largest value of an integer type."""
    half = 1 << (INTEGERS[type.kind] - 1)
    return -half, half - 1


def common(one: SqlType, other: SqlType) -> SqlType | None:
    """The type that both become without a cast, as Spark widens them; None if there is none."""
    if one == other:
        return one
    for here, there in ((one, other), (other, one)):
        if here.kind == "void":
            return there
        if here.kind == "double" and there.is_number:
            return DOUBLE
    if one.is_integer and other.is_integer:
        return max(one, other, key=lambda each: INTEGERS[each.kind])
    return None
