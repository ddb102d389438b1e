"""The options of the sink, checked once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final

import msgspec

from starlingmq.client.endpoint import Endpoint, parse_url
from starlingmq.client.producer import WINDOW
from starlingmq.spark.option_error import OptionError
from starlingmq.spark.read_options import NODE_TIMEOUT_SECONDS, read_ca, read_flag, read_number
from starlingmq.spark.secret_reference import SecretReference, read_secret

NAMES: Final = (
    "servers",
    "user",
    "password",
    "passwordFile",
    "passwordEnv",
    "tlsCa",
    "topic",
    "qos",
    "retain",
    "idempotencyKey",
    "batchId",
    "sameSplit",
    "deleteRetained",
    "window",
    "nodeTimeout",
    "excludedNodes",
)
CHECKPOINT: Final = "checkpointlocation"
OF_SPARK: Final = ("path", CHECKPOINT, "queryname")  # Spark adds these


class SinkOptions(msgspec.Struct, frozen=True, kw_only=True):
    """``topic``, ``qos``, ``retain``: for rows without this column, or with null in it. ``key``: identifies batches
    ("": by the query, or this write only). ``same_split``: the caller promises that every attempt at a batch write has
    the same rows in each partition. ``delete_retained``: a null payload with retain deletes the retained message of its
    topic.
    """

    servers: tuple[str, ...]
    user: str = ""
    password: str | SecretReference = ""
    ca: str = ""
    topic: str = ""
    qos: int = 1
    retain: bool = False
    key: str = ""
    batch: int = 0
    same_split: bool = False
    delete_retained: bool = False
    window: int = WINDOW
    node_timeout: float = NODE_TIMEOUT_SECONDS
    repeatable: bool = False  # other attempts, of this query or with this key, have the same name
    one_qos: bool = False  # the rows have no column ``qos``
    excluded_nodes: tuple[str, ...] = ()  # nodes, by URL or name, that will not return
    checkpoint: str = ""  # the query's checkpoint; "" in batch, or if Spark does not provide it

    def for_columns(self, names: Sequence[str]) -> SinkOptions:
        return msgspec.structs.replace(self, one_qos="qos" not in names)

    @property
    def urls(self) -> tuple[str, ...]:
        """The servers in normalized form, without user and password."""
        return tuple(dict.fromkeys(str(parse_url(server)) for server in self.servers))

    def endpoint(self, url: str) -> Endpoint:
        """Return the endpoint of such a URL, with the user from ``servers``."""
        return next((each for each in map(parse_url, self.servers) if str(each) == url), parse_url(url))


def _excluded(text: str) -> tuple[str, ...]:
    """Return the given names of nodes, and those that are an address also as ``urls`` has it."""
    found: list[str] = []
    for name in filter(None, map(str.strip, text.split(","))):
        found.append(name)
        if ":" in name:
            with suppress(ValueError):
                found.append(str(parse_url(name if "://" in name else f"mqtt://{name}")))
    return tuple(dict.fromkeys(found))


def read_sink_options(given: Mapping[str, str]) -> SinkOptions:
    """Check and parse the options. Raises OptionError."""
    known = {name.lower(): name for name in NAMES}
    options: dict[str, str] = {}
    for key, value in given.items():
        if key.lower() in known:
            options[known[key.lower()]] = value
        elif key.lower() == CHECKPOINT:
            options[CHECKPOINT] = value
        elif key.lower() not in OF_SPARK:
            raise OptionError(f"{key}: unknown option of the sink; the options are {', '.join(NAMES)}")
    servers = tuple(server.strip() for server in options.get("servers", "").split(",") if server.strip())
    if not servers:
        raise OptionError("servers: name at least one node, as mqtt://host:port")
    for server in servers:
        try:
            parse_url(server)
        except ValueError as error:
            raise OptionError(f"servers: {error}") from None
    qos = options.get("qos", "1").strip()
    if qos not in ("0", "1", "2"):
        raise OptionError(f"qos: {qos!r} is not 0, 1 or 2")
    batch = options.get("batchId", "").strip()
    if batch and not batch.isdecimal():
        raise OptionError(f"batchId: {batch!r} is not a number")
    if batch and not options.get("idempotencyKey"):
        raise OptionError("batchId: needs the option idempotencyKey as well")
    return SinkOptions(
        servers=servers,
        user=options.get("user", ""),
        password=read_secret(options, "password"),
        ca=read_ca(options.get("tlsCa", "")),
        topic=options.get("topic", ""),
        qos=int(qos),
        retain=read_flag(options, "retain", False),
        key=options.get("idempotencyKey", ""),
        batch=int(batch or "0"),
        same_split=read_flag(options, "sameSplit", False),
        delete_retained=read_flag(options, "deleteRetained", False),
        window=min(65_535, read_number(options, "window", WINDOW)),
        node_timeout=float(read_number(options, "nodeTimeout", int(NODE_TIMEOUT_SECONDS))),
        excluded_nodes=_excluded(options.get("excludedNodes", "")),
        repeatable=bool(options.get("idempotencyKey") or options.get(CHECKPOINT)),
        checkpoint=options.get(CHECKPOINT, ""),
    )
