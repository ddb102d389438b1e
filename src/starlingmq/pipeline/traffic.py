"""The data of a traffic report, computed in Spark: volume over time, by topic root and by client, and silences."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from starlingmq.config.section_types import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

STEPS: Final = (1, 2, 5, 10, 30, 60, 300, 600, 1800, 3600, 6 * 3600, 86400, 7 * 86400)  # seconds
POINTS_MAX: Final = 120  # points of a line
ROOTS_MAX: Final = 7  # topic roots with their own line
OTHERS: Final = "(others)"
TOP: Final = 15  # rows of a table


class TrafficError(ConfigError):
    """No report can be made; one line."""


class Share(msgspec.Struct, frozen=True):
    """The share of a topic root, a topic or a client. Bytes are of payloads; ``least`` and ``most`` of one message."""

    name: str
    messages: int
    bytes: int
    topics: int
    clients: int


class Silence(msgspec.Struct, frozen=True):
    """The longest interval between two messages below a root: Unix seconds."""

    root: str
    since: float
    until: float


class MissingOffsets(msgspec.Struct, frozen=True):
    """A gap in the offsets of a node."""

    node: str
    since: int
    until: int


class Traffic(msgspec.Struct, frozen=True):
    """``messages`` and ``bytes`` per second by root, from ``begin`` on every ``step`` seconds; ``sizes``: by the next
    power of two above.
    """

    source: str
    begin: float
    end: float
    step: int
    count: int
    size: int
    topics: int
    clients: int
    qos: dict[int, int]
    retained: int
    messages: dict[str, list[float]]
    bytes: dict[str, list[float]]
    sizes: dict[int, int]
    by_root: list[Share]
    by_topic: list[Share]
    by_client: list[Share]
    silences: list[Silence]
    missing: list[MissingOffsets]


def look_at(spark: SparkSession, rows: DataFrame, source: str, filtered: bool) -> Traffic:
    """Compute the report. ``filtered``: offsets are missing because a filter excludes them. Raises TrafficError if
    there are no messages.
    """
    from pyspark.sql import functions as F

    found = rows.select(
        "topic", "qos", "retain", "client_id", "node", "offset",
        F.element_at(F.split("topic", "/"), 1).alias("root"),
        F.length("payload").alias("size"),
        F.col("timestamp").cast("double").alias("at"),
    ).persist()  # fmt: skip
    try:
        found.createOrReplaceTempView("traffic")
        whole = spark.sql(WHOLE).collect()[0]
        if not whole.messages:
            raise TrafficError(f"{source}: contains no messages to report on")
        step = next((step for step in STEPS if (whole.end - whole.begin) / step < POINTS_MAX), STEPS[-1])
        begin = whole.begin // step * step
        by_root = _shares(spark, "root")
        named = [share.name for share in by_root[:ROOTS_MAX]]
        points = int((whole.end - begin) // step) + 1
        messages: dict[str, list[float]] = {}
        sizes: dict[str, list[float]] = {}
        for row in spark.sql(RATES.format(begin=begin, step=step)).collect():
            name = row.root if row.root in named else OTHERS
            messages.setdefault(name, [0.0] * points)[row.point] += row.messages / step
            sizes.setdefault(name, [0.0] * points)[row.point] += row.bytes / step
        order = [name for name in (*named, OTHERS) if name in messages]
        return Traffic(
            source=source,
            begin=begin,
            end=whole.end,
            step=step,
            count=whole.messages,
            size=whole.bytes,
            topics=whole.topics,
            clients=whole.clients,
            qos={row.qos: row.messages for row in spark.sql(QOS).collect()},
            retained=whole.retained,
            messages={name: messages[name] for name in order},
            bytes={name: sizes[name] for name in order},
            sizes={row.power: row.messages for row in spark.sql(SIZES).collect()},
            by_root=by_root[:TOP],
            by_topic=_shares(spark, "topic")[:TOP],
            by_client=_shares(spark, "client_id")[:TOP],
            silences=[Silence(row.root, row.since, row.until) for row in spark.sql(SILENCES).collect()],
            missing=[]
            if filtered
            else [MissingOffsets(row.node, row.since, row.until) for row in spark.sql(MISSING).collect()],
        )
    finally:
        found.unpersist()


def _shares(spark: SparkSession, column: str) -> list[Share]:
    rows = spark.sql(SHARES.format(column=column)).collect()
    return [Share(row.name, row.messages, row.bytes, row.topics, row.clients) for row in rows]


WHOLE: Final = """
SELECT count(*) AS messages, coalesce(sum(size), 0) AS bytes, min(at) AS begin, max(at) AS end,
  count(DISTINCT topic) AS topics, count(DISTINCT client_id) AS clients, count_if(retain) AS retained
FROM traffic
"""
RATES: Final = """
SELECT root, CAST(floor((at - {begin}) / {step}) AS int) AS point, count(*) AS messages, sum(size) AS bytes
FROM traffic GROUP BY 1, 2
"""
QOS: Final = "SELECT CAST(qos AS int) AS qos, count(*) AS messages FROM traffic GROUP BY 1 ORDER BY 1"
SIZES: Final = """
SELECT CASE WHEN size = 0 THEN 0 ELSE CAST(floor(log2(size)) AS int) + 1 END AS power, count(*) AS messages
FROM traffic GROUP BY 1 ORDER BY 1
"""
SHARES: Final = f"""
SELECT {{column}} AS name, count(*) AS messages, sum(size) AS bytes, count(DISTINCT topic) AS topics,
  count(DISTINCT client_id) AS clients
FROM traffic GROUP BY 1 ORDER BY messages DESC, name LIMIT {TOP}
"""  # noqa: S608 a constant
SILENCES: Final = f"""
SELECT root, max_by(before, at - before) AS since, max_by(at, at - before) AS until FROM (
  SELECT root, at, lag(at) OVER (PARTITION BY root ORDER BY at) AS before FROM traffic
) WHERE before IS NOT NULL GROUP BY root ORDER BY until - since DESC, root LIMIT {TOP}
"""  # noqa: S608 a constant
MISSING: Final = f"""
SELECT node, before + 1 AS since, offset - 1 AS until FROM (
  SELECT node, offset, lag(offset) OVER (PARTITION BY node ORDER BY offset) AS before FROM traffic
) WHERE offset > before + 1 ORDER BY node, since LIMIT {TOP}
"""  # noqa: S608 a constant
