"""The options of the source, with meaning, default and errors, checked once."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, get_args

import msgspec

from starlingmq.bulk.protocol import ColumnName
from starlingmq.config.section_types import parse_duration
from starlingmq.spark.option_error import OptionError
from starlingmq.spark.secret_reference import SecretReference, read_secret

EARLIEST: Final = "earliest"
LATEST: Final = "latest"
ROWS_PER_PARTITION: Final = 1_000_000
NODE_TIMEOUT_SECONDS: Final = 30.0
TRIGGER_DELAY_SECONDS: Final = 15 * 60.0  # as Kafka's source has it
MILLIS_MIN: Final = 100_000_000_000  # 1973; as seconds the year 5138
MILLIS_END: Final = 7_258_118_400_000  # 2200
UNITS: Final = {"kib": 1024, "mib": 1024**2, "gib": 1024**3, "k": 1024, "m": 1024**2, "g": 1024**3}

NAMES: Final = (
    "servers",
    "stream",
    "token",
    "tokenFile",
    "tokenEnv",
    "user",
    "password",
    "passwordFile",
    "passwordEnv",
    "tlsCa",
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "endingTimestamp",
    "topicFilter",
    "columns",
    "maxRowsPerTrigger",
    "maxBytesPerTrigger",
    "minRowsPerTrigger",
    "maxTriggerDelay",
    "rowsPerPartition",
    "minPartitions",
    "failOnDataLoss",
    "excludedNodes",
    "consumer",
    "pinRetention",
    "nodeTimeout",
)

ALIASES: Final = {
    "maxOffsetsPerTrigger": "maxRowsPerTrigger",
    "minOffsetsPerTrigger": "minRowsPerTrigger",
    "maxRecordsPerPartition": "rowsPerPartition",
}
"""Names of Spark's Kafka source that mean the same."""


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """``starting`` and ``ending``: EARLIEST, LATEST, or an offset for each node. ``since`` and ``until``: Unix seconds,
    for all nodes or by node, in place of ``starting`` and ``ending``. ``rows_max``, ``bytes_max``: limits of a
    micro-batch, 0: none. ``rows_min``: rows that it waits for, at most for ``trigger_delay`` seconds.
    ``node_timeout``: seconds to wait for a node that does not answer.
    """

    servers: tuple[str, ...]
    stream: str
    token: str | SecretReference = ""
    user: str = ""
    password: str | SecretReference = ""
    ca: str = ""  # PEM, not a path: executors may not have the file
    starting: str | dict[str, int] = EARLIEST
    ending: str | dict[str, int] = LATEST
    since: float | dict[str, float] | None = None
    until: float | dict[str, float] | None = None
    filters: tuple[str, ...] = ()
    columns: tuple[ColumnName, ...] = ()  # none: all
    rows_max: int = 0
    bytes_max: int = 0
    rows_min: int = 0
    trigger_delay: float = TRIGGER_DELAY_SECONDS
    rows_per_partition: int = ROWS_PER_PARTITION
    partitions_min: int = 1
    fail_on_loss: bool = True
    excluded_nodes: tuple[str, ...] = ()  # nodes that will not return
    consumer: str = ""
    pins: bool = False
    node_timeout: float = NODE_TIMEOUT_SECONDS


def read_options(given: Mapping[str, str], streaming: bool) -> Options:
    """Check and parse the options. Raises OptionError."""
    known = {name.lower(): name for name in NAMES} | {alias.lower(): name for alias, name in ALIASES.items()}
    options: dict[str, str] = {}
    for key, value in given.items():
        if key.lower() in known:
            name = known[key.lower()]
            if name in options:
                raise OptionError(f"{key}: {name} is set as well, and means the same; set only one of them")
            options[name] = value
        elif key.lower() != "path":
            raise OptionError(f"{key}: unknown option; the options are {', '.join(NAMES)}")
    servers = tuple(server.strip() for server in options.get("servers", "").split(",") if server.strip())
    if not servers:
        raise OptionError("servers: name at least one node as host:port of its streams.listen")
    for server in servers:
        if "://" in server:
            raise OptionError(f"servers: {server!r} is a URL; the source needs host:port of streams.listen")
        host, _, port = server.rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 65536:
            raise OptionError(f"servers: {server!r} is not host:port, with a port between 1 and 65535")
    if not options.get("stream"):
        raise OptionError("stream: required; set it to the name of the stream")
    for end in ("starting", "ending"):
        if f"{end}Offsets" in options and f"{end}Timestamp" in options:
            raise OptionError(f"{end}Timestamp: {end}Offsets is set as well; set only one of them")
    for name in ("endingOffsets", "endingTimestamp"):
        if streaming and name in options:
            raise OptionError(f"{name}: not supported by streaming queries; use Trigger.AvailableNow, or a batch query")
    since, until = (_timestamps(options, name) for name in ("startingTimestamp", "endingTimestamp"))
    if isinstance(since, float) and isinstance(until, float) and until < since:
        raise OptionError(f"endingTimestamp: {_shown(until)} is before startingTimestamp, {_shown(since)}")
    return Options(
        servers=servers,
        stream=options["stream"],
        token=read_secret(options, "token"),
        user=options.get("user", ""),
        password=read_secret(options, "password"),
        ca=read_ca(options.get("tlsCa", "")),
        starting=_offsets(options, "startingOffsets", LATEST if streaming else EARLIEST),
        ending=_offsets(options, "endingOffsets", LATEST),
        since=since,
        until=until,
        filters=tuple(filter.strip() for filter in options.get("topicFilter", "").split(",") if filter.strip()),
        columns=read_columns(options),
        rows_max=read_number(options, "maxRowsPerTrigger", 0),
        bytes_max=_size(options, "maxBytesPerTrigger"),
        rows_min=read_number(options, "minRowsPerTrigger", 0),
        trigger_delay=_seconds(options, "maxTriggerDelay", TRIGGER_DELAY_SECONDS),
        rows_per_partition=read_number(options, "rowsPerPartition", ROWS_PER_PARTITION),
        partitions_min=read_number(options, "minPartitions", 1),
        fail_on_loss=read_flag(options, "failOnDataLoss", True),
        excluded_nodes=tuple(name.strip() for name in options.get("excludedNodes", "").split(",") if name.strip()),
        consumer=options.get("consumer", ""),
        pins=read_flag(options, "pinRetention", False),
        node_timeout=float(read_number(options, "nodeTimeout", int(NODE_TIMEOUT_SECONDS))),
    )


def read_columns(options: Mapping[str, str]) -> tuple[ColumnName, ...]:
    found = tuple(name.strip() for name in options.get("columns", "").split(",") if name.strip())
    if len(set(found)) < len(found):
        raise OptionError(f"columns: {options['columns']!r} has a column twice")
    try:
        return msgspec.convert(found, tuple[ColumnName, ...])
    except msgspec.ValidationError:
        known = get_args(ColumnName)
        unknown = [name for name in found if name not in known]
        raise OptionError(f"columns: there is no {', '.join(unknown)}; the columns are {', '.join(known)}") from None


def read_ca(path: str) -> str:
    if not path:
        return ""
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise OptionError(f"tlsCa: {path} cannot be read: {error.strerror}") from None


def _offsets(options: Mapping[str, str], name: str, otherwise: str) -> str | dict[str, int]:
    text = options.get(name, otherwise).strip()
    if text.lower() in (EARLIEST, LATEST):
        return text.lower()
    try:
        return msgspec.json.decode(text, type=dict[str, int])
    except msgspec.MsgspecError:
        example = json.dumps({"node": 0})
        raise OptionError(f"{name}: {text!r} is not earliest, latest, or offsets such as {example}") from None


def _timestamps(options: Mapping[str, str], name: str) -> float | dict[str, float] | None:
    text = options.get(name, "").strip()
    if not text:
        return None
    if not text.startswith("{"):
        return _timestamp(name, text)
    try:
        by_node = msgspec.json.decode(text, type=dict[str, int | str])
    except msgspec.MsgspecError:
        raise OptionError(
            f"{name}: {text!r} is not a time, or times such as {json.dumps({'node': 1769860800000})}"
        ) from None
    return {node: _timestamp(name, str(when)) for node, when in by_node.items()}


def _timestamp(name: str, text: str) -> float:
    if text.isdigit():
        number = int(text)
        if number and not MILLIS_MIN <= number < MILLIS_END:
            unit = "seconds" if number < MILLIS_MIN else "microseconds or nanoseconds"
            raise OptionError(f"{name}: {text} looks like {unit}; give milliseconds since 1970, or a time in ISO 8601")
        return number / 1000.0
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        forms = "milliseconds since 1970 nor a time such as 2026-01-31T12:00:00+00:00"
        raise OptionError(f"{name}: {text!r} is neither {forms}") from None
    return (when if when.tzinfo is not None else when.replace(tzinfo=UTC)).timestamp()


def _shown(when: float) -> str:
    return datetime.fromtimestamp(when, UTC).isoformat()


def _seconds(options: Mapping[str, str], name: str, otherwise: float) -> float:
    text = options.get(name, "").strip()
    if not text:
        return otherwise
    try:
        return parse_duration(text)
    except ValueError as error:
        raise OptionError(f"{name}: {error}") from None


def read_number(options: Mapping[str, str], name: str, otherwise: int) -> int:
    text = options.get(name, "").strip()
    if not text:
        return otherwise
    if not text.isdigit() or int(text) == 0:
        raise OptionError(f"{name}: {text!r} is not a number above 0")
    return int(text)


def _size(options: Mapping[str, str], name: str) -> int:
    text = options.get(name, "").strip().lower()
    for unit, factor in UNITS.items():
        if text.endswith(unit) and text.removesuffix(unit).strip().isdigit():
            return int(text.removesuffix(unit)) * factor
    return read_number(options, name, 0)


def read_flag(options: Mapping[str, str], name: str, otherwise: bool) -> bool:
    text = options.get(name, "").strip().lower()
    if text not in ("", "true", "false"):
        raise OptionError(f"{name}: {text!r} is neither true nor false")
    return otherwise if not text else text == "true"
