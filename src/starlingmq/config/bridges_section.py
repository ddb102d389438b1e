"""The settings of bridges to other brokers: the section ``bridges`` of the tree, and checks that involve several."""

from __future__ import annotations

import re
from typing import Annotated, Final, Literal
from urllib.parse import SplitResult, urlsplit

from msgspec import Meta, structs

from starlingmq.config.secret_masking import SECRET, SECRET_URL, without_login
from starlingmq.config.section_types import ConfigError, Count, Section, Size
from starlingmq.config.streams_section import NAME_PATTERN

SCHEMES: Final = ("mqtt", "mqtts", "ws", "wss", "unix")
NATS_SCHEMES: Final = ("nats", "tls")
KAFKA_SCHEMES: Final = ("kafka", "kafka+ssl")
KAFKA_NAME: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}")
KEY: Final = "{key}"  # in ``rename`` of messages from Kafka
FILTER_BYTES_MAX: Final = 65_535
RESERVED: Final = (b"$share/", b"$SYS/", b"$events/", b"$bridge/", b"$link/")


class BridgeTopic(Section, frozen=True):
    filter: Annotated[
        str,
        Meta(
            description="Filter of the topics, without the prefixes; + and # as in MQTT. Empty: a prefix is the topic. "
            "With NATS also $share/GROUP/FILTER: the bridge is a member of that queue group. From Kafka: the name of a "
            "topic."
        ),
    ]
    direction: Annotated[
        Literal["in", "out", "both"],
        Meta(description="in: from the other broker to this one; out: to the other; both: each way, not with Kafka."),
    ] = "out"
    qos: Annotated[
        int, Meta(ge=0, le=2, description="Highest QoS of the messages; a message with a lower one keeps that.")
    ] = 2
    local_prefix: Annotated[
        str, Meta(description="Start of the topics at this broker. The other broker's topics do not have it.")
    ] = ""
    remote_prefix: Annotated[
        str, Meta(description="Start of the topics at the other broker. This broker's topics do not have it.")
    ] = ""
    rename: Annotated[
        str,
        Meta(
            description="Topic at the receiving broker, with {1}, {2} ... for what the wildcards of the filter match, "
            "in place of the prefixes' rule; not with direction both. To Kafka: its topic, / becomes a dot; required "
            "if the filter has wildcards. From Kafka: {key} is the key of the record."
        ),
    ] = ""


class BridgeCredentials(Section, frozen=True):
    username: Annotated[str | None, Meta(description="User name at the other broker.")] = None
    password: Annotated[
        str | None, Meta(description="Password of this user; in NATS a token if there is no user name.", extra=SECRET)
    ] = None
    password_file: Annotated[
        str | None, Meta(description="File with the password, in place of password; its last line end is ignored.")
    ] = None
    creds_file: Annotated[
        str | None,
        Meta(
            description="NATS: file with the credentials of a user (.creds, with JWT and seed), or with an NKey seed."
        ),
    ] = None
    sasl: Annotated[
        Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"], Meta(description="SASL mechanism of Kafka.")
    ] = "PLAIN"


class BridgeTls(Section, frozen=True):
    ca: Annotated[
        str, Meta(description="PEM file with the CA certificates of the other broker. Empty: those of the system.")
    ] = ""
    cert: Annotated[str, Meta(description="PEM file with the certificate chain of this client. Empty: none.")] = ""
    key: Annotated[
        str, Meta(description="PEM file with the private key. Empty: the key is read from the certificate file.")
    ] = ""
    alpn: Annotated[
        tuple[str, ...], Meta(description="Application protocols to offer, such as x-amzn-mqtt-ca or mqtt.")
    ] = ()
    insecure: Annotated[
        bool,
        Meta(description="Accept a certificate for another name; without ca, also one of an unknown authority."),
    ] = False


class BridgeFollow(Section, frozen=True):
    database: Annotated[
        str,
        Meta(
            description="File with the sessions of the other broker, a mosquitto (mosquitto.db). Each session is moved "
            "here when its client connects here. Empty: none is. Not in a cluster."
        ),
    ] = ""
    pid_file: Annotated[
        str,
        Meta(
            description="File with the process id of the mosquitto, which writes its sessions at SIGUSR1. Empty: none."
        ),
    ] = ""


class BridgeConfig(Section, frozen=True):
    name: Annotated[
        str,
        Meta(
            pattern=NAME_PATTERN,
            description="Name of the bridge: 1 to 64 letters, digits, dots, dashes and underscores.",
        ),
    ]
    servers: Annotated[
        tuple[Annotated[str, Meta(min_length=1)], ...],
        Meta(
            min_length=1,
            description="URLs of the other broker (mqtt, mqtts, ws, wss, unix) or NATS server (nats, tls); the next "
            "one is tried when one fails. Of Kafka (kafka, kafka+ssl): its bootstrap servers, all of one scheme.",
            extra=SECRET_URL,
        ),
    ]
    topics: Annotated[tuple[BridgeTopic, ...], Meta(min_length=1, description="The topics that it carries.")]
    version: Annotated[
        Literal["3.1.1", "5.0"], Meta(description="Version of MQTT that the other broker is spoken to in.")
    ] = "5.0"
    client_id: Annotated[
        str,
        Meta(
            description="Client id at the other broker, with Kafka also the group id. Empty: the name of the bridge "
            "and eight characters that stand for this broker or cluster."
        ),
    ] = ""
    credentials: Annotated[BridgeCredentials, Meta(description="Login at the other broker.")] = BridgeCredentials()
    tls: Annotated[BridgeTls, Meta(description="TLS of mqtts, wss and kafka+ssl.")] = BridgeTls()
    keep_alive: Annotated[
        int, Meta(ge=5, le=65_535, description="Seconds of silence after which the connection is checked.")
    ] = 60
    start: Annotated[
        Literal["automatic", "lazy", "once"],
        Meta(
            description="automatic: connected all the time. lazy: connected while messages wait for the other broker, "
            "and a minute longer. once: connected until the connection ends."
        ),
    ] = "automatic"
    retain: Annotated[
        bool, Meta(description="Whether messages stay retained, and retained ones are carried to new subscriptions.")
    ] = True
    priority: Annotated[
        int,
        Meta(
            ge=0,
            le=7,
            description="Class of its packets (DSCP CS0 to CS7) for the system's queues and for routers: those with a "
            "higher one go first where a line is narrow.",
        ),
    ] = 0
    notifications: Annotated[
        Literal["local", "both", "off"],
        Meta(
            description="Where $SYS/broker/connection/NAME/state says 1 or 0: at this broker, also at the other one "
            "(which must allow it, as mosquitto does), or nowhere."
        ),
    ] = "local"
    follow: Annotated[BridgeFollow, Meta(description="Migration from the other broker, client by client.")] = (
        BridgeFollow()
    )
    max_inflight: Annotated[
        int,
        Meta(
            ge=0,
            le=32_767,
            description="QoS 1 and 2 messages in flight to the other broker; 0: what it allows; with "
            "3.1.1 100, or 20 if topics have QoS 2; with Kafka 1000.",
        ),
    ] = 0
    max_mqueue_len: Annotated[
        Count,
        Meta(description="Messages that wait for the other broker before the oldest is dropped; 0 sets no limit."),
    ] = 1_000_000
    hold_publishers: Annotated[
        bool,
        Meta(
            description="Whether publishers are held back, as for a slow client, once half of mqtt.max_mqueue_len "
            "messages wait for the other broker."
        ),
    ] = False
    queue_bytes: Annotated[
        Size, Meta(description="Bytes that wait for the other broker before the oldest is dropped; 0 sets no limit.")
    ] = 1024**3


def check_bridges(bridges: tuple[BridgeConfig, ...], section: str = "bridges") -> None:
    """Checks that the bounds of single settings cannot express. Raises ConfigError."""
    names = [bridge.name for bridge in bridges]
    for index, bridge in enumerate(bridges):
        path = f"{section}[{index}]"
        if bridge.name in names[:index]:
            raise ConfigError(f"{path}.name: {bridge.name} is defined twice; rename one of them")
        if bridge.credentials.password and bridge.credentials.password_file:
            raise ConfigError(f"{path}.credentials.password_file: password is set as well; set only one of them")
        if bridge.tls.key and not bridge.tls.cert:
            raise ConfigError(f"{path}.tls.key: needs tls.cert, the certificate of this key")
        for number, url in enumerate(bridge.servers):
            _check_server(url, f"{path}.servers[{number}]")
        _check_kind(bridge, path)


def _check_kind(bridge: BridgeConfig, path: str) -> None:
    nats, kafka = speaks_nats(bridge), speaks_kafka(bridge)
    kinds = {_kind_of(url) for url in bridge.servers}
    if len(kinds) > 1 and kinds <= set(KAFKA_SCHEMES):
        raise ConfigError(f"{path}.servers: must all be {' or all be '.join(KAFKA_SCHEMES)}")
    if len(kinds) > 1:
        raise ConfigError(f"{path}.servers: must all speak MQTT, all NATS or all Kafka; make a bridge for each")
    if bridge.follow.database and (nats or kafka or bridge.version != "5.0"):
        raise ConfigError(f"{path}.follow.database: needs a bridge to a mosquitto with version 5.0")
    if nats:
        _check_nats(bridge, path)
    elif bridge.credentials.creds_file:
        raise ConfigError(f"{path}.credentials.creds_file: is for servers that speak NATS")
    for number, topic in enumerate(bridge.topics):
        if kafka:
            _check_kafka_topic(topic, f"{path}.topics[{number}]")
        else:
            _check_topic(topic, f"{path}.topics[{number}]", nats)
    sources = [topic.remote_prefix + topic.filter for topic in bridge.topics if topic.direction == "in"]
    if kafka and len(sources) != len(set(sources)):
        raise ConfigError(f"{path}.topics: a Kafka topic is read by several entries; keep one of them")


def speaks_nats(bridge: BridgeConfig) -> bool:
    return _scheme_of(bridge.servers[0]) in NATS_SCHEMES


def speaks_kafka(bridge: BridgeConfig) -> bool:
    return _scheme_of(bridge.servers[0]) in KAFKA_SCHEMES


def _scheme_of(url: str) -> str:
    return url.partition(":")[0].lower()


def _kind_of(url: str) -> str:
    """The kind of server: all those of a bridge must be of one."""
    scheme = _scheme_of(url)
    if scheme in NATS_SCHEMES:
        return "nats"
    return scheme if scheme in KAFKA_SCHEMES else "mqtt"


def valid_kafka_topic(name: str) -> bool:
    return KAFKA_NAME.fullmatch(name) is not None and name not in (".", "..")


def _check_nats(bridge: BridgeConfig, path: str) -> None:
    credentials = bridge.credentials
    if credentials.creds_file and (credentials.username or credentials.password or credentials.password_file):
        raise ConfigError(f"{path}.credentials.creds_file: a user or password is set as well; set only one of them")
    if bridge.start == "lazy":
        raise ConfigError(f"{path}.start: a bridge to NATS has no queue, so nothing waits for it; use automatic")


def _check_server(url: str, path: str) -> None:
    shown = without_login(url)
    schemes = (*SCHEMES, *NATS_SCHEMES, *KAFKA_SCHEMES)
    try:
        parts: SplitResult = urlsplit(url)
        wrong = parts.scheme not in schemes or parts.port == 0
        wrong = wrong or not (parts.path if parts.scheme == "unix" else parts.hostname)
    except ValueError:
        wrong = True
    if wrong:
        raise ConfigError(
            f"{path}: {shown} is not a URL such as mqtt://host:1883 or mqtts://host ({', '.join(schemes)})"
        )
    if parts.username or parts.password:
        raise ConfigError(f"{path}: {shown} has a login; set credentials.username and credentials.password_file")


def _check_kafka_topic(topic: BridgeTopic, path: str) -> None:
    if topic.direction == "both":
        raise ConfigError(f"{path}.direction: with Kafka, write one entry for in and one for out")
    if topic.direction == "out":
        _check_topic(topic, path, nats=False)
        if not topic.rename and ("+" in topic.filter or "#" in topic.filter):
            raise ConfigError(
                f"{path}.rename: name the Kafka topic, as a filter with wildcards would give one to each MQTT topic; "
                "the MQTT topic is the key of the records"
            )
        name = re.sub(r"\{\d+\}", "x", topic.rename) or topic.remote_prefix + topic.filter
        if not valid_kafka_topic(name.replace("/", ".")):
            raise ConfigError(
                f"{path}.{'rename' if topic.rename else 'filter'}: {name} is no name of a Kafka topic: 1 to 249 "
                "letters, digits, dots, dashes and underscores; a slash becomes a dot"
            )
        return
    if not valid_kafka_topic(topic.remote_prefix + topic.filter):
        raise ConfigError(
            f"{path}.filter: with direction in, it is the name of a Kafka topic: 1 to 249 letters, digits, dots, "
            "dashes and underscores"
        )
    _check_topic(structs.replace(topic, rename=topic.rename.replace(KEY, "key")), path, nats=False)


def _check_topic(topic: BridgeTopic, path: str, nats: bool) -> None:
    if nats and topic.filter.startswith("$share/"):
        group, _, rest = topic.filter.removeprefix("$share/").partition("/")
        if not group or not rest or any(each in group for each in "+#*> \t\r\n\0"):
            raise ConfigError(f"{path}.filter: a queue group is written $share/GROUP/FILTER")
        topic = structs.replace(topic, filter=rest)
    for side, prefix in (("local_prefix", topic.local_prefix), ("remote_prefix", topic.remote_prefix)):
        if "+" in prefix or "#" in prefix or "\0" in prefix:
            raise ConfigError(f"{path}.{side}: must not contain + and #; put them into the filter")
        whole = (prefix + topic.filter).encode()
        levels = whole.split(b"/")
        if not whole or len(whole) > FILTER_BYTES_MAX or "\0" in topic.filter:
            raise ConfigError(f"{path}.filter: with {side} it must have 1 to {FILTER_BYTES_MAX} bytes, without NUL")
        if b"#" in levels[:-1] or any(wild in level and level != wild for level in levels for wild in (b"+", b"#")):
            raise ConfigError(f"{path}.filter: + and # must be whole levels, and # the last one")
        if whole.startswith(RESERVED):
            raise ConfigError(f"{path}.filter: topics of a broker itself and shared subscriptions are not carried")
    if not topic.rename:
        return
    if topic.direction == "both":
        raise ConfigError(f"{path}.rename: works one way only; write one entry for in and one for out")
    if topic.rename.encode().startswith(RESERVED):
        raise ConfigError(f"{path}.rename: must not be a topic of a broker itself")
    wildcards = sum(level in ("+", "#") for level in topic.filter.split("/"))
    left = topic.rename
    for number in range(1, wildcards + 1):
        left = left.replace(f"{{{number}}}", "")
    if "{" in left or "}" in left or "+" in left or "#" in left or "\0" in left:
        raise ConfigError(
            f"{path}.rename: is a topic with {{1}} to {{{wildcards}}} for the wildcards of the filter"
            if wildcards
            else f"{path}.rename: is a topic without braces, because the filter has no wildcards"
        )
