"""Recognizes the payloads of a sample, and writes the ``decode`` part of a pipeline file that fits them.

Each format is tried on each payload. The format that reads most of them wins; formats are tried from the strictest to
the loosest, and the first one wins a tie. What the sample does not decide is told in notes.

    sparkplug   the topic is spBv1.0/..., and the payload is a Sparkplug message
    confluent   byte 0 and a schema id, all of few ids: Avro or Protobuf, which only the registry knows
    json        an object
    msgpack     a map, and nothing behind it
    cbor        the same
    csv         text in lines of the same number of columns
"""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Callable
from math import isfinite
from typing import Any, Final

import msgspec
import pyarrow as pa  # type: ignore[import-untyped]
import yaml

from starlingmq.log import printable
from starlingmq.pipeline.column_types import ColumnTypes, ddl
from starlingmq.spark.binary_payloads import BinaryFormat, decoder
from starlingmq.spark.framed_payloads import FRAME_BYTES, MAGIC
from starlingmq.spark.option_error import OptionError
from starlingmq.spark.payloads import MALFORMED
from starlingmq.spark.sparkplug import VALUE, decoded_payloads

SHARE_MIN: Final = 0.5  # of the payloads, from which a format is recognized
FRAMED_IDS_MAX: Final = 20
SEPARATORS: Final = (",", ";", "\t", "|")
TOPICS_SHOWN: Final = 3
OF_SOURCE: Final = ("topic", "qos", "retain", "client_id", "properties", "timestamp", "node", "offset")
WIDTH: Final = 100


class PayloadSample(msgspec.Struct, frozen=True):
    topic: str
    payload: bytes


class Inference(msgspec.Struct, frozen=True, kw_only=True):
    """``decode``: the settings; ``fits``: payloads of the sample that they can read."""

    decode: dict[str, Any]
    notes: list[str]
    fits: int
    samples: int


Recognizer = Callable[[list[PayloadSample]], list[Any]]
"""Returns what a format reads of each payload; None for those that it does not read."""


def infer(samples: list[PayloadSample]) -> Inference:
    found: list[tuple[str, list[Any]]] = []
    missing: list[str] = []
    for name, recognize in RECOGNIZERS.items():
        try:
            found.append((name, recognize(samples)))
        except (ImportError, OptionError) as error:
            missing.append(f"{name} was not tried: {error}")
    counts = {name: _count(values) for name, values in found}
    best = max(counts, key=lambda name: counts[name]) if samples else ""
    if not samples or counts[best] < SHARE_MIN * len(samples):
        notes = [*missing, *_nothing_fits(samples)]
        return Inference(decode={"format": "raw"}, notes=notes, fits=len(samples), samples=len(samples))
    values = dict(found)[best]
    decode, notes = DECODES[best]([value for value in values if value is not None])
    notes = [*missing, *notes]
    strangers = [sample for sample, value in zip(samples, values, strict=True) if value is None]
    if strangers:
        others = Counter(sample.topic for sample in strangers)
        topics = ", ".join(topic for topic, _ in others.most_common(TOPICS_SHOWN))
        notes.append(f"{len(strangers):,} of {len(samples):,} payloads are not {best}, on topics such as {topics}")
    return Inference(decode=decode, notes=notes, fits=counts[best], samples=len(samples))


def as_yaml(found: Inference) -> str:
    """Return the part of a pipeline file, with a comment for each note."""
    lines = [f"# {printable(' '.join(note.split()))}" for note in found.notes]
    text = ""
    for readable in (True, False):  # PyYAML writes U+0085, U+2028 and U+2029 unescaped, and reads them as line breaks
        text = yaml.safe_dump({"decode": found.decode}, sort_keys=False, allow_unicode=readable, width=WIDTH)
        if text.replace("\n", "").isprintable():
            break
    return "".join(f"{line}\n" for line in lines) + text


def _nothing_fits(samples: list[PayloadSample]) -> list[str]:
    if not samples:
        return ["the stream has no rows, so nothing can be inferred"]
    notes = ["no format reads at least half of the payloads; choose topics of one kind with --topics"]
    if all(sample.payload == b"" for sample in samples):
        return ["all payloads are empty"]
    plain = [sample.payload for sample in samples if _json(sample.payload) is not None]
    if len(plain) >= SHARE_MIN * len(samples):
        return [
            f"the payloads are JSON, but not objects, such as {plain[0][:40].decode()!r}: "
            "a step reads them with from_json(string(payload), ...)"
        ]
    return notes


# Formats


def _sparkplug(samples: list[PayloadSample]) -> list[Any]:
    payloads = pa.array([sample.payload for sample in samples], pa.binary())
    rows = decoded_payloads(payloads, pa.array([sample.topic for sample in samples], pa.string())).to_pylist()
    return [row[VALUE] if row[MALFORMED] is None else None for row in rows]


def _sparkplug_decode(values: list[Any]) -> tuple[dict[str, Any], list[str]]:
    notes: list[str] = []
    if any(metric["alias"] is not None and not metric["metric"] for value in values for metric in value["metrics"]):
        notes.append("some metrics have an alias only; state: aliases adds the names of their BIRTH messages")
        return {"format": "sparkplug", "state": "aliases"}, notes
    return {"format": "sparkplug"}, notes


def _confluent(samples: list[PayloadSample]) -> list[Any]:
    ids = [
        int.from_bytes(sample.payload[1:FRAME_BYTES])
        if sample.payload[:1] == MAGIC and len(sample.payload) >= FRAME_BYTES
        else None
        for sample in samples
    ]
    return ids if len(set(ids) - {None}) <= FRAMED_IDS_MAX else [None] * len(samples)


def _confluent_decode(values: list[int]) -> tuple[dict[str, Any], list[str]]:
    ids = ", ".join(map(str, sorted(set(values))))
    notes = [
        f"schema id {ids} of a registry: whether it is Avro or Protobuf, and its columns, are there; avro is a guess, "
        "and schema and schema_file (a directory of ID.avsc) are yours to set"
    ]
    return {"format": "avro", "framing": "confluent", "schema_file": "schemas", "schema": "id string"}, notes


def _json(payload: bytes) -> Any:
    """Return the value of a payload; None if the pipeline would not take it."""
    try:
        text = payload.decode("utf-8-sig")
        return json.loads(text, parse_constant=_refused, parse_float=_finite, object_pairs_hook=_object)
    except (ValueError, RecursionError):
        return None


def _refused(text: str) -> Any:
    raise ValueError(f"{text} is not JSON")


def _object(fields: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(fields)
    return found if len(found) == len(fields) else _refused("a key twice")


def _finite(text: str) -> float:
    value = float(text)
    return value if isfinite(value) else _refused(text)


def _json_objects(samples: list[PayloadSample]) -> list[Any]:
    return [value if isinstance(value := _json(sample.payload), dict) else None for sample in samples]


def _columns(format: str, values: list[dict[str, Any]]) -> tuple[dict[str, Any], list[str]]:
    types = ColumnTypes(format == "json")
    columns = types.columns(values)
    replaced = [name for name, _ in columns if name.lower() in OF_SOURCE]
    notes = types.notes
    if replaced:
        notes.append(f"{', '.join(replaced)}: replaces the column of the source of the same name")
    if not columns:
        notes.append("all payloads are empty maps, so there are no columns; id string is a guess")
        columns = [("id", "string")]
    return {"format": format, "schema": ddl(columns)}, notes


def _maps(format: str) -> Recognizer:
    def recognize(samples: list[PayloadSample]) -> list[Any]:
        decode = decoder(BinaryFormat(name=format, columns='{"type": "struct", "fields": []}'))
        return [
            value if isinstance(value := _read(decode, sample.payload), dict) and _named(value) else None
            for sample in samples
        ]

    return recognize


def _named(value: dict[Any, Any]) -> bool:
    return all(isinstance(name, str) for name in value)


def _read(parse: Callable[[bytes], Any], payload: bytes) -> Any:
    try:
        return parse(payload)
    except Exception:  # of whichever library
        return None


def _csv(samples: list[PayloadSample]) -> list[Any]:
    best: list[Any] = [None] * len(samples)
    texts = [None if isinstance(_json(sample.payload), list | dict) else _text(sample.payload) for sample in samples]
    for separator in (*SEPARATORS, ""):
        cells = [next(csv.reader([text], delimiter=separator or ",")) if text else None for text in texts]
        widths = Counter(len(each) for each in cells if each is not None)
        width = widths.most_common(1)[0][0] if widths else 0
        if (width > 1) != bool(separator):
            continue
        found = [(separator, each) if each is not None and len(each) == width else None for each in cells]
        numbers = all(_number(each[0]) for each in cells if each)  # one column may be any text
        if (separator or numbers) and _count(found) > _count(best):
            best = found
    return best


def _count(values: list[Any]) -> int:
    return sum(each is not None for each in values)


def _text(payload: bytes) -> str | None:
    try:
        text = payload.decode("utf-8-sig")
    except UnicodeDecodeError:
        return None
    text = text.removesuffix("\n").removesuffix("\r")
    return text if text.strip() and text.replace("\t", "").isprintable() else None


def _number(text: str) -> bool:
    return isinstance(_value(text), int | float)


def _value(text: str) -> Any:
    """Return the value of a cell."""
    text = text.strip()
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for read in (int, _finite):
        try:
            return read(text) if "_" not in text else text
        except ValueError:
            continue
    return text or None


def _csv_decode(values: list[tuple[str, list[str]]]) -> tuple[dict[str, Any], list[str]]:
    separator = values[0][0]
    width = len(values[0][1])
    names = ["value"] if width == 1 else [f"c{index + 1}" for index in range(width)]
    types = ColumnTypes(True)
    columns = types.columns([{name: _value(cell) for name, cell in zip(names, row, strict=True)} for _, row in values])
    notes = [*types.notes, *(["the columns have no names: c1, c2, ... are yours to rename"] if width > 1 else [])]
    decode: dict[str, Any] = {"format": "csv", "schema": ddl(columns)}
    if separator not in ("", ","):
        decode["options"] = {"sep": separator}
    return decode, notes


RECOGNIZERS: Final[dict[str, Recognizer]] = {
    "sparkplug": _sparkplug,
    "json": _json_objects,
    "msgpack": _maps("msgpack"),
    "cbor": _maps("cbor"),
    "confluent": _confluent,
    "csv": _csv,
}
DECODES: Final[dict[str, Callable[[list[Any]], tuple[dict[str, Any], list[str]]]]] = {
    "sparkplug": _sparkplug_decode,
    "confluent": _confluent_decode,
    "json": lambda values: _columns("json", values),
    "msgpack": lambda values: _columns("msgpack", values),
    "cbor": lambda values: _columns("cbor", values),
    "csv": _csv_decode,
}
