"""Types of columns that fit sample values, as the DDL of Spark.

values of a column             type
none, or null only             string, and a note
bool / int / float             boolean / bigint / double
int beyond bigint              decimal(38,0)
int and float                  double
text, all of it ISO 8601       timestamp (of text formats: binary ones do not parse text)
other text                     string
bytes, datetime                binary, timestamp
lists                          array of the type of all elements
maps                           struct; map<string, ...> if the keys look like data
different kinds                string, and a note
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from datetime import datetime
from typing import Any, Final

ISO_TIME: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d(:\d\d(\.\d{1,6})?)?(Z|[+-]\d\d:\d\d)?(?!\n)$")
PLAIN_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?!\n)$")
BIGINT: Final = range(-(1 << 63), 1 << 63)
DECIMAL: Final = range(-(10**38) + 1, 10**38)
FIELDS_MAX: Final = 200  # of a struct
MAP_KEYS_MIN: Final = 20  # different keys from which a map may be one of data
MAP_SHARE_MAX: Final = 0.5  # with the average key in at most this share of the values
DEPTH_MAX: Final = 32
EPOCHS: Final = {"s": 10**9, "ms": 10**12, "us": 10**15, "ns": 10**18}  # 2001, in this unit
EPOCH_END: Final = 2.5  # times that, 2049: a number between is taken for a time
KINDS: Final = (
    (bool, "boolean"),
    (int, "integer"),
    (float, "double"),
    (str, "text"),
    (bytes, "bytes"),
    (datetime, "timestamp"),
    (list, "list"),
    (tuple, "list"),
    (dict, "map"),
)


class ColumnTypes:
    """Finds types, and notes for what the sample does not decide. ``text_format``: its decoder parses times."""

    def __init__(self, text_format: bool) -> None:
        self.text_format = text_format
        self.notes: list[str] = []

    def columns(self, rows: list[dict[str, Any]]) -> list[tuple[str, str]]:
        """Return name and type of each column of maps from field to value."""
        return self._fields("", rows, 0)

    def _fields(self, path: str, rows: list[dict[str, Any]], depth: int) -> list[tuple[str, str]]:
        names: dict[str, list[Any]] = {}
        for row in rows:
            for name, value in row.items():
                names.setdefault(str(name), []).append(value)
        if len(names) > FIELDS_MAX:
            self.notes.append(
                f"{path or 'the payload'}: has {len(names)} fields; only the first {FIELDS_MAX} are named"
            )
        found: list[tuple[str, str]] = []
        chosen: dict[str, str] = {}  # of the spellings that Spark does not distinguish, the most frequent one
        for name in names:
            other = chosen.setdefault(name.lower(), name)
            if len(names[name]) > len(names[other]):
                chosen[name.lower()] = name
        for name in list(names)[:FIELDS_MAX]:
            where = f"{path}.{name}" if path else name
            if chosen[name.lower()] != name:
                self.notes.append(
                    f"{where}: in {len(names[name]):,} of {len(rows):,}, and left out, because Spark does not "
                    f"distinguish it by case from {chosen[name.lower()]}"
                )
                continue
            values = [value for value in names[name] if value is not None]
            if values and len(values) < len(rows):
                self.notes.append(f"{where}: absent or null in {len(rows) - len(values):,} of {len(rows):,}")
            found.append((name, self._type(where, values, depth)))
        return found

    def _type(self, path: str, values: list[Any], depth: int) -> str:
        if not values:
            self.notes.append(f"{path}: always null, so its type is unknown; string is a guess")
            return "string"
        kinds = Counter(kind_of(value) for value in values)
        if kinds.keys() <= {"integer", "double"}:
            self._note_time(path, values)
        if set(kinds) == {"integer", "double"}:
            return "double"
        if len(kinds) > 1:
            told = ", ".join(f"{kind} in {count:,}" for kind, count in kinds.most_common())
            end = "" if self.text_format else "; payloads with another kind cannot be decoded"
            self.notes.append(f"{path}: {told}; string is a guess{end}")
            return "string"
        match next(iter(kinds)):
            case "integer":
                return self._integer(path, values)
            case "text":
                return "timestamp" if self.text_format and all(map(ISO_TIME.match, values)) else "string"
            case "bytes":
                return "binary"
            case "list" | "map" if depth >= DEPTH_MAX:
                self.notes.append(f"{path}: nested more than {DEPTH_MAX} times; string is a guess")
                return "string"
            case "list":
                elements = [each for value in values for each in value if each is not None]
                return f"array<{self._type(f'{path}[]', elements, depth + 1)}>"
            case "map":
                return self._map(path, values, depth)
            case "unknown":
                self.notes.append(f"{path}: {type(values[0]).__name__} has no type of Spark; string is a guess")
                return "string"
            case kind:
                return kind

    def _integer(self, path: str, values: list[int]) -> str:
        if all(value in BIGINT for value in values):
            return "bigint"
        if all(value in DECIMAL for value in values):
            return "decimal(38,0)"
        self.notes.append(f"{path}: numbers beyond decimal(38,0); double loses digits")
        return "double"

    def _note_time(self, path: str, values: list[Any]) -> None:
        for unit, low in EPOCHS.items():
            if all(low <= value < EPOCH_END * low for value in values):
                column = path.replace("[]", "")
                self.notes.append(
                    f"{path}: looks like a time in {unit}; as one: the type timestamp, and timestamp_unit: "
                    f"{{{column}: {unit}}}"
                )

    def _map(self, path: str, values: list[dict[str, Any]], depth: int) -> str:
        keys = {str(key) for value in values for key in value}
        share = sum(map(len, values)) / (len(keys) * len(values)) if keys else 0.0
        if not keys:
            self.notes.append(f"{path}: always an empty map; map<string, string> is a guess")
            return "map<string, string>"
        if len(keys) >= MAP_KEYS_MIN and share <= MAP_SHARE_MAX:
            self.notes.append(f"{path}: {len(keys):,} different keys, so they are taken for data, and it for a map")
            below = [each for value in values for each in value.values() if each is not None]
            return f"map<string, {self._type(f'{path}[]', below, depth + 1)}>"
        fields = self._fields(path, values, depth + 1)
        return f"struct<{', '.join(f'{quoted(name)}: {kind}' for name, kind in fields)}>"


def kind_of(value: Any) -> str:
    return next((kind for type, kind in KINDS if isinstance(value, type)), "unknown")


def quoted(name: str) -> str:
    """Return a name as SQL has it."""
    return name if PLAIN_NAME.match(name) else "`" + name.replace("`", "``") + "`"


def ddl(columns: Iterable[tuple[str, str]]) -> str:
    return ", ".join(f"{quoted(name)} {kind}" for name, kind in columns)
