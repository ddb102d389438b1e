"""The settings of rules: the section ``rules`` of the tree, in the words of pipeline files, and checks between them."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal
from urllib.parse import urlsplit

from msgspec import Meta, field

from starlingmq.config.bridges_section import RESERVED, BridgeConfig, BridgeTopic
from starlingmq.config.secret_masking import SECRET_URL
from starlingmq.config.section_types import ConfigError, Count, PositiveDuration, Section, Size
from starlingmq.config.streams_section import NAME_PATTERN

EVENTS: Final = "$events/"  # topics of the life of each message
ROWS: Final = "rows"  # the table that the first step reads
TABLE: Final = r"^[A-Za-z_][A-Za-z0-9_]{0,63}(?!\n)$"
OF_POSTGRESQL: Final = ("url", "table", "key", "user", "password_file")
TOPIC_OPTIONS: Final = ("topic", "qos", "retain", "deleteRetained")


class RuleSource(Section, frozen=True):
    topics: Annotated[
        tuple[Annotated[str, Meta(min_length=1)], ...],
        Meta(min_length=1, description="Topic filters; a message that several match is read once."),
    ]
    qos: Annotated[
        int,
        Meta(
            ge=0,
            le=1,
            description="1: messages of QoS 1 and 2 wait for the rule, also while this broker is away. 0: they are "
            "read as they come, and lost with it.",
        ),
    ] = 1


class RuleDecode(Section, frozen=True):
    format: Annotated[
        Literal["raw", "json"], Meta(description="raw: no columns of the payload; json: those of the schema.")
    ] = "raw"
    schema: Annotated[str, Meta(description="Columns and types, as in SQL: id string, v double. Not for raw.")] = ""


class RuleStep(Section, frozen=True):
    sql: Annotated[str, Meta(min_length=1, description="A query over rows or a previous step, in Spark's SQL.")]
    name: Annotated[str, Meta(pattern=TABLE, description="Name of the result in the following steps.")] = "result"


class RuleTable(Section, frozen=True):
    name: Annotated[str, Meta(pattern=TABLE, description="Name of the table in SQL.")]
    path: Annotated[str, Meta(min_length=1, description="CSV file, with the names of its columns in the first line.")]
    format: Annotated[Literal["csv"], Meta(description="Format of the file.")] = "csv"
    options: Annotated[
        dict[str, Literal["true"]], Meta(description="As in pipeline files: header, which is true in any case.")
    ] = field(default_factory=dict)


class RuleSink(Section, frozen=True):
    format: Annotated[
        Literal["topic", "http", "postgresql"],
        Meta(
            description="topic: rows become messages of this broker; http: rows are POSTed to a URL, as JSON; "
            "postgresql: rows of a table."
        ),
    ] = "topic"
    url: Annotated[
        str,
        Meta(description="With http and postgresql: where to, such as postgresql://host/database.", extra=SECRET_URL),
    ] = ""
    table: Annotated[str, Meta(description="With postgresql: the table, or SCHEMA.TABLE, with the columns.")] = ""
    key: Annotated[
        tuple[str, ...],
        Meta(
            description="With postgresql: columns of a unique index; a row takes the place of one with the same values."
        ),
    ] = ()
    user: Annotated[str, Meta(description="With postgresql: the user.")] = ""
    password_file: Annotated[str, Meta(description="With postgresql: file with the password of the user.")] = ""
    token_file: Annotated[
        str, Meta(description="With http: file with a token, sent as Authorization: Bearer TOKEN. Empty: none.")
    ] = ""
    batch: Annotated[int, Meta(ge=1, le=10_000, description="Rows of a request or a transaction, at most.")] = 100
    timeout: Annotated[PositiveDuration, Meta(description="Longest wait for an answer of the target.")] = 30.0
    options: Annotated[
        dict[str, str],
        Meta(description="With topic: topic, qos and retain of rows without these columns; deleteRetained."),
    ] = field(default_factory=dict)


class RuleDeadLetter(Section, frozen=True):
    topic: Annotated[
        str, Meta(min_length=1, description="Topic of messages that have no result, with the reason as a property.")
    ]


class RuleConfig(Section, frozen=True):
    name: Annotated[
        str,
        Meta(pattern=NAME_PATTERN, description="Name: 1 to 64 letters, digits, dots, dashes and underscores."),
    ]
    source: Annotated[RuleSource, Meta(description="The messages that it reads.")]
    decode: Annotated[RuleDecode, Meta(description="Decoding of payloads into columns.")] = RuleDecode()
    tables: Annotated[
        tuple[RuleTable, ...],
        Meta(description="Lookup tables, to join with by the value of columns. They are read when the rule starts."),
    ] = ()
    steps: Annotated[
        tuple[RuleStep, ...],
        Meta(description="Queries in order; without any, messages are written as they are."),
    ] = ()
    sink: Annotated[RuleSink, Meta(description="Where results go.")] = RuleSink()
    dead_letter: Annotated[
        RuleDeadLetter | None,
        Meta(
            description="Where messages go that cannot be decoded, or whose SQL fails. Empty: they are counted and "
            "logged, and end."
        ),
    ] = None
    max_inflight: Annotated[
        int, Meta(ge=1, le=32_767, description="Messages that the rule works on at the same time.")
    ] = 1000
    max_mqueue_len: Annotated[
        Count, Meta(description="Messages that wait for the rule before the oldest is dropped; 0 sets no limit.")
    ] = 1_000_000
    queue_bytes: Annotated[
        Size, Meta(description="Bytes that wait for the rule before the oldest is dropped; 0 sets no limit.")
    ] = 1024**3


class RuleLane(BridgeConfig, frozen=True, kw_only=True):
    """A rule as a bridge into its sink: with a session, a queue, pauses and counts as each of them has."""

    rule: RuleConfig


def lane_of(rule: RuleConfig) -> RuleLane:
    topics = tuple(BridgeTopic(filter=filter, qos=rule.source.qos) for filter in dict.fromkeys(rule.source.topics))
    bounds: dict[str, Any] = {name: getattr(rule, name) for name in ("max_inflight", "max_mqueue_len", "queue_bytes")}
    return RuleLane(
        name=f"rule:{rule.name}", servers=(rule.sink.format,), topics=topics, notifications="off", rule=rule, **bounds
    )


def check_rules(rules: tuple[RuleConfig, ...]) -> None:
    """Checks that the bounds of single settings cannot express. Raises ConfigError."""
    names = [rule.name for rule in rules]
    for index, rule in enumerate(rules):
        path = f"rules[{index}]"
        if rule.name in names[:index]:
            raise ConfigError(f"{path}.name: {rule.name} is defined twice; rename one of them")
        check_rule(rule, f"{path}.")


def check_rule(rule: RuleConfig, path: str = "") -> None:
    """Raises ConfigError; ``path``: before the names of settings."""
    for number, filter in enumerate(rule.source.topics):
        levels = filter.encode().split(b"/")
        wild = any(each in level and level != each for level in levels for each in (b"+", b"#"))
        events = filter.startswith(EVENTS)
        if events and (rule.sink.format == "topic" or rule.dead_letter is not None):
            raise ConfigError(f"{path}source.topics[{number}]: messages of a rule on {EVENTS} would cause more events")
        reserved = filter.encode().startswith(RESERVED) and not events
        if b"#" in levels[:-1] or wild or reserved or "\0" in filter:
            raise ConfigError(f"{path}source.topics[{number}]: {filter!r} is no topic filter that a rule may read")
    if (rule.decode.format == "raw") == bool(rule.decode.schema):
        raise ConfigError(f"{path}decode.schema: required for json, and not allowed for raw")
    taken = {ROWS}
    named = [(f"tables[{number}]", table.name) for number, table in enumerate(rule.tables)]
    named += [(f"steps[{number}]", step.name) for number, step in enumerate(rule.steps)]
    for where, name in named:
        if name in taken:
            raise ConfigError(f"{path}{where}.name: {name} is used twice; rename one of them")
        taken.add(name)
    for number, table in enumerate(rule.tables):
        if set(table.options) - {"header"}:
            raise ConfigError(f"{path}tables[{number}].options: there is header only")
    _check_sink(rule.sink, f"{path}sink")
    letters = rule.dead_letter
    if letters is not None and ("+" in letters.topic or "#" in letters.topic or letters.topic.startswith("$")):
        raise ConfigError(f"{path}dead_letter.topic: {letters.topic} is no topic that a rule may publish to")


def _check_sink(sink: RuleSink, path: str) -> None:
    used = {"topic": ("options",), "http": ("url", "token_file"), "postgresql": OF_POSTGRESQL}[sink.format]
    for name in ("options", "token_file", *OF_POSTGRESQL):
        if getattr(sink, name) and name not in used:
            raise ConfigError(f"{path}.{name}: has no meaning for {sink.format}; remove it")
    if sink.format == "topic":
        _check_options(sink.options, path)
        return
    schemes = ("http", "https") if sink.format == "http" else ("postgresql", "postgres")
    try:
        parts = urlsplit(sink.url)
        wrong = parts.scheme not in schemes or not parts.hostname or parts.port == 0 or bool(parts.fragment)
    except ValueError:
        wrong = True
    if wrong:
        raise ConfigError(f"{path}.url: expected a URL such as {schemes[-1]}://host/path")
    if parts.username is not None:
        login = "token_file" if sink.format == "http" else "user and password_file"
        raise ConfigError(f"{path}.url: a login in a URL would be shown; use {login}")
    if sink.format == "postgresql" and not sink.table:
        raise ConfigError(f"{path}.table: required for postgresql")


def _check_options(options: dict[str, str], path: str) -> None:
    for name, value in options.items():
        if name not in TOPIC_OPTIONS:
            raise ConfigError(f"{path}.options.{name}: unknown; there are {', '.join(TOPIC_OPTIONS)}")
        if name == "qos" and value not in ("0", "1", "2"):
            raise ConfigError(f"{path}.options.qos: must be 0, 1 or 2, in quotes")
        if name in ("retain", "deleteRetained") and value not in ("true", "false"):
            raise ConfigError(f"{path}.options.{name}: must be true or false, in quotes")
