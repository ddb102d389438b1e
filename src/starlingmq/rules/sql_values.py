"""The functions that compiled SQL calls: casts, text forms and functions, each with the result that Spark's has (ANSI).

Raises RowFailed where Spark ends its query: an overflow, a division by zero, a cast that fails.
"""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from decimal import ROUND_HALF_UP, Context, Decimal
from json.encoder import encode_basestring
from typing import Any, Final

from starlingmq.rules.sql_types import SqlType, bounds


class RowFailed(ValueError):
    """A row has no result; one line that says why."""


INTEGER_TEXT: Final = re.compile(r"[+-]?[0-9]+")
DOUBLE_TEXT: Final = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[dDfF]?")
WORDS: Final = {"inf": math.inf, "infinity": math.inf, "nan": math.nan}
TRUE: Final = frozenset(("t", "true", "y", "yes", "1"))
FALSE: Final = frozenset(("f", "false", "n", "no", "0"))
BLANKS: Final = "".join(map(chr, range(0x21)))
"""Around the text of a double, as Java's String.trim takes them off."""
SPACES: Final = BLANKS + "\x7f"
"""Around that of an integer or boolean, as UTF8String.trimAll of Spark does."""
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
SHOWN: Final = 60
BIGINT_DIGITS: Final = 19
TEXT_MAX: Final = 64 * 1024**2  # characters that a replacement may make of a text
ROWS_MAX: Final = 10_000  # of one message
BYTES_MAX: Final = 64 * 1024**2  # of the rows of one message
REASON_MAX: Final = 500  # characters of the reason for a failure
TURNS_MAX: Final = 100_000  # elements of arrays, and rows of lookup tables, that a message may lead through
ROUND_MAX: Final = 400  # decimals, beyond which rounding changes no double or gives 0
LEAST: Final = 5e-324  # the least double, which Java writes with two digits
DIGITS: Final = Context(prec=2 * ROUND_MAX)


def shown(value: object) -> str:
    """The begin of a value, for an error."""
    text = repr(value)
    return text if len(text) <= SHOWN else text[:SHOWN] + "..."


def size_of(item: object) -> int:
    """About how many bytes a row for a target has."""
    if isinstance(item, (str, bytes)):
        return len(item)
    return sum(map(size_of, item)) if isinstance(item, (list, tuple)) else 8


def printable(text: str) -> str:
    """One line of it, for a log and a property: without control characters and halves of pairs, and not too long."""
    found = "".join([each if each.isprintable() else repr(each)[1:-1] for each in text[:REASON_MAX]])
    return found if len(text) <= REASON_MAX else found + "..."


def too_large() -> RowFailed:
    return RowFailed(f"its rows have more than {BYTES_MAX:,} bytes")


def too_many_turns() -> RowFailed:
    return RowFailed(f"its arrays and lookups make more than {TURNS_MAX:,} rows before any is filtered")


# Numbers


def within(value: int, least: int, most: int) -> int:
    if least <= value <= most:
        return value
    raise RowFailed(f"{value} is above or below what its type holds: cast to a wider type, or use try_cast")


def divided(one: float, other: float) -> float:
    if other == 0:
        raise RowFailed("division by zero: use nullif(divisor, 0) for null")
    return one / other


def quotient(one: int, other: int) -> int:
    """``div``: rounded towards zero."""
    if other == 0:
        raise RowFailed("division by zero: use nullif(divisor, 0) for null")
    found = abs(one) // abs(other)
    return within(found if (one < 0) == (other < 0) else -found, -(1 << 63), (1 << 63) - 1)


def remainder(one: int, other: int) -> int:
    """With the sign of the dividend."""
    if other == 0:
        raise RowFailed("remainder by zero: use nullif(divisor, 0) for null")
    found = abs(one) % abs(other)
    return -found if one < 0 else found


def remainder_of_doubles(one: float, other: float) -> float:
    if other == 0:
        raise RowFailed("remainder by zero: use nullif(divisor, 0) for null")
    if math.isinf(one):
        return math.nan
    return math.fmod(one, other)


def order(one: float, other: float) -> int:
    """-1, 0 or 1 for doubles: NaN equals NaN and is above all, -0.0 equals 0.0."""
    if one != one or other != other:
        return (one != one) - (other != other)
    return (one > other) - (one < other)


def root(value: float) -> float:
    return math.sqrt(value) if value >= 0 else math.nan


def rounded(value: float, decimals: int) -> float:
    """HALF_UP on the shortest decimal that stands for the double, as Spark rounds it."""
    if not math.isfinite(value):
        return value
    places = Decimal(1).scaleb(-max(-ROUND_MAX, min(ROUND_MAX, decimals)))
    return float(Decimal(repr(value)).quantize(places, ROUND_HALF_UP, DIGITS)) + 0.0  # there is no -0.0


def floor_of(value: float) -> int:
    return _whole(math.floor, value)


def ceiling_of(value: float) -> int:
    return _whole(math.ceil, value)


def _whole(make: Callable[[float], int], value: float) -> int:
    """A bigint; 0 for NaN, as Java has it."""
    if value != value:
        return 0
    if math.isinf(value) or not -(2.0**63) <= (found := make(value)) < 2.0**63:
        raise RowFailed(f"{java_double(value)} is above or below what bigint holds")
    return found


# Casts


def integer_of_text(text: str, type: SqlType) -> int:
    trimmed = text.strip(SPACES)
    least, most = bounds(type)
    digits = trimmed.lstrip("+-").lstrip("0")
    if (
        INTEGER_TEXT.fullmatch(trimmed) is None
        or len(digits) > BIGINT_DIGITS
        or not least <= (value := int(digits or "0") * (-1 if trimmed[0] == "-" else 1)) <= most
    ):
        raise RowFailed(f"{shown(text)} is no {type}: use try_cast for null")
    return value


def double_of_text(text: str) -> float:
    trimmed = text.strip(BLANKS)
    if DOUBLE_TEXT.fullmatch(trimmed) is not None:
        return float(trimmed.rstrip("dDfF"))
    sign, word = (-1.0, trimmed[1:]) if trimmed.startswith("-") else (1.0, trimmed.removeprefix("+"))
    found = WORDS.get(word.lower())
    if found is None or (found != found and word not in (trimmed, "NaN")):  # with a sign, Java's word alone is one
        raise RowFailed(f"{shown(text)} is no double: use try_cast for null")
    return sign * found


def boolean_of_text(text: str) -> bool:
    word = text.strip(SPACES).lower()
    if word in TRUE:
        return True
    if word in FALSE:
        return False
    raise RowFailed(f"{shown(text)} is no boolean: use try_cast for null")


def integer_of_double(value: float, type: SqlType) -> int:
    least, most = bounds(type)
    if value != value or math.isinf(value) or not (math.floor(value) <= most and math.ceil(value) >= least):
        raise RowFailed(f"{java_double(value)} is above or below what {type} holds: use try_cast for null")
    return max(least, min(most, int(value)))  # 2^63 as a double is the nearest to the largest bigint


def text_of_bytes(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise RowFailed("the bytes are no UTF-8, which a string needs") from None


def java_double(value: float) -> str:
    """A double as Java writes it: 0.001 to 10,000,000 in plain digits, others as 1.0E7.

    With the shortest digits that stand for it, as Java 19 and later: Java 17 writes one or two more for some of those
    above 1.0E15.
    """
    if value != value:
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    text = repr(value)
    size = abs(value)
    if size == LEAST:
        return "4.9E-324" if value > 0 else "-4.9E-324"
    if size == 0 or 1e-3 <= size < 1e7:
        return text if "e" not in text else f"{Decimal(text):f}"
    sign, digits, exponent = Decimal(text).as_tuple()
    assert isinstance(exponent, int)
    shift = exponent + len(digits) - 1
    written = "".join(map(str, digits)).rstrip("0") or "0"
    return f"{'-' if sign else ''}{written[0]}.{written[1:] or '0'}E{shift}"


def time_text(micros: int) -> str:
    """A timestamp cast to a string, in UTC: no trailing zeros behind the second."""
    at = _time(micros)
    text = at.strftime("%Y-%m-%d %H:%M:%S").rjust(19, "0")
    return text + f".{at.microsecond:06d}".rstrip("0") if at.microsecond else text


def _time(micros: int) -> datetime:
    try:
        return EPOCH + timedelta(microseconds=micros)
    except OverflowError:
        raise RowFailed(f"{micros} microseconds since 1970 are in no year from 1 to 9999") from None


# Texts


def substring(text: Any, start: int, length: int) -> Any:
    """From position ``start``, 1 is the first; negative ones count from the end. Of a string or binary."""
    size = len(text)
    begin = start - 1 if start > 0 else (size + start if start < 0 else 0)
    end = begin + length
    return text[max(0, begin) : max(0, end)] if length > 0 else text[:0]


def base64_text(data: bytes) -> str:
    """In lines of 76 characters, as Spark writes it."""
    return base64.encodebytes(data).decode().removesuffix("\n").replace("\n", "\r\n")


def split_part(text: str, separator: str, number: int) -> str:
    if number == 0:
        raise RowFailed("split_part counts from 1, or from -1 at the end; 0 is no part")
    parts = text.split(separator) if separator else [text]
    at = number - 1 if number > 0 else len(parts) + number
    return parts[at] if 0 <= at < len(parts) else ""


def like_parts(pattern: str, escape: str = "\\") -> list[str]:
    """Regular expressions of a fixed length for what stands between the % of a LIKE pattern. Raises ValueError."""
    parts: list[str] = [""]
    at = 0
    while at < len(pattern):
        each = pattern[at]
        if each == escape:
            at += 1
            if at == len(pattern) or pattern[at] not in ("_", "%", escape):
                raise ValueError(f"{escape} in a LIKE pattern must stand before _, % or {escape}")
            parts[-1] += re.escape(pattern[at])
        elif each == "%":
            parts.append("")
        else:
            parts[-1] += "." if each == "_" else re.escape(each)
        at += 1
    return parts


class LikePattern:
    """A LIKE pattern, in time that grows with text times pattern at most. Raises ValueError."""

    def __init__(self, pattern: str) -> None:
        parts = [re.compile(part, re.DOTALL) for part in like_parts(pattern)]
        self._first, self._middle, self._last = parts[0], parts[1:-1], parts[-1] if len(parts) > 1 else None
        self._last_size = len(re.sub(r"\\(.)", r"\1", parts[-1].pattern, flags=re.DOTALL))

    def matches(self, text: str) -> bool:
        """Each part where it is found first; all parts have a fixed length."""
        if self._last is None:
            return self._first.fullmatch(text) is not None
        found = self._first.match(text)
        for part in self._middle:
            if found is None:
                return False
            found = part.search(text, found.end())
        end = len(text) - self._last_size
        return found is not None and end >= found.end() and self._last.fullmatch(text, end) is not None


def replaced(text: str, old: str, new: str) -> str:
    if not old:
        return text
    if len(new) > len(old) and len(text) + text.count(old) * (len(new) - len(old)) > TEXT_MAX:
        raise RowFailed(f"replace makes a text of more than {TEXT_MAX:,} characters")
    return text.replace(old, new)


def item(values: Sequence[Any], index: int) -> Any:
    """``array[index]``, from 0."""
    if 0 <= index < len(values):
        return values[index]
    raise RowFailed(f"index {index} is outside of an array of {len(values)}: use try_element_at or get for null")


def element_at(values: Sequence[Any], index: int) -> Any:
    """From 1, or from -1 at the end."""
    if index == 0 or not -len(values) <= index <= len(values):
        raise RowFailed(f"element {index} is outside of an array of {len(values)}: use try_element_at for null")
    return values[index - 1 if index > 0 else index]


def contained(values: Sequence[Any], wanted: Any) -> bool | None:
    """Null if it is not there, and a null is."""
    if wanted in [each for each in values if each is not None]:
        return True
    return None if None in values else False


# JSON

Written = Callable[[Any], str]
"""A value as JSON."""


CONTROL: Final = re.compile(r"\\u00[01][0-9a-f]")


def json_text(text: str) -> str:
    found = encode_basestring(text)
    return CONTROL.sub(lambda each: "\\u" + each[0][2:].upper(), found) if "\\u00" in found else found


def json_double(value: float) -> str:
    """Spark writes NaN and infinity as strings."""
    return java_double(value) if math.isfinite(value) else f'"{java_double(value)}"'


def json_time(micros: int) -> str:
    at = _time(micros)
    return f'"{at.year:04d}{at:-%m-%dT%H:%M:%S}.{at.microsecond // 1000:03d}Z"'


def json_writer(type: SqlType) -> Written:
    """The function that writes a value of this type as ``to_json`` does: without fields that are null."""
    if type.element is not None:
        each = json_writer(type.element)
        return lambda values: "[" + ",".join(["null" if value is None else each(value) for value in values]) + "]"
    if type.kind == "struct":
        writers = [(at, json_text(name) + ":", json_writer(below)) for at, (name, below) in enumerate(type.fields)]
        return lambda row: (
            "{" + ",".join([name + write(row[at]) for at, name, write in writers if row[at] is not None]) + "}"
        )
    return WRITERS.get(type.kind, str)


WRITERS: Final[dict[str, Written]] = {
    "boolean": lambda value: "true" if value else "false",
    "double": json_double,
    "string": json_text,
    "binary": lambda value: f'"{base64.b64encode(value).decode()}"',
    "timestamp": json_time,
}
JSON_BLANKS: Final = " \t\n\r"


class DoubledKeys(dict[str, Any]):
    """An object that has a key twice: the first value counts, and ``pairs`` are all."""

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(reversed(pairs))
        self.pairs = pairs


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    return found if len(found) == len(pairs) else DoubledKeys(pairs)


def _no_number(word: str) -> float:
    raise ValueError(word)


JSON: Final = json.JSONDecoder(parse_constant=_no_number, object_pairs_hook=_object, strict=False)


def json_value(text: str, path: Sequence[str | int]) -> str | None:
    """``get_json_object``: null where there is nothing, null, or no JSON. Text after the JSON is passed over."""
    try:
        begun = text.lstrip(JSON_BLANKS)
        found, end = JSON.raw_decode(begun)
        if not isinstance(found, (dict, list, str)) and begun[end : end + 1].strip(JSON_BLANKS):
            return None  # the number or word goes on
    except (ValueError, RecursionError):
        return None
    for key in path:
        if isinstance(key, str) and isinstance(found, dict):
            found = found.get(key)
        elif isinstance(key, int) and isinstance(found, list) and key < len(found):
            found = found[key]
        else:
            return None
    if isinstance(found, str) or (found is None and path):
        return found
    try:
        return _as_json(found)
    except RecursionError:
        raise RowFailed("the JSON in a text is nested too deeply") from None


def _as_json(value: Any) -> str:
    if isinstance(value, dict):
        pairs = value.pairs if isinstance(value, DoubledKeys) else value.items()
        return "{" + ",".join([f"{json_text(name)}:{_as_json(below)}" for name, below in pairs]) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_as_json, value)) + "]"
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    if isinstance(value, float):
        return java_double(value)
    return json_text(value) if isinstance(value, str) else str(value)
