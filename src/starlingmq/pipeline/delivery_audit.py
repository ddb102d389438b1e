"""The delivery audit: Spark evaluates the broker's own events (docs/STREAMS.md) of each message.

A message that is due to a receiver is delivered, or dropped with a reason, or waits; otherwise it is lost. The broker's
census counts the waiting messages; everything due before it is audited: before the last census, or with several nodes
before the last but one of the node that is behind, because a message between two nodes may be in neither census. A
message is doubled if it was delivered more often than it was due, at QoS 0 and 2; QoS 1 allows that, and it is counted
as ``again``.

Excused are messages without a guarantee: held in memory only when the process ended, at QoS 0 on a link between nodes,
or due before events were enabled.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final, cast

import msgspec

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

EVENT: Final = (
    "n bigint, at double, id string, client string, topic string, qos int, dup boolean, kept boolean, reason string, "
    "count bigint, census bigint, since double, run bigint"
)
BATCH: Final = f"node string, life bigint, batch bigint, events array<struct<{EVENT}>>"
IDS: Final = """
IF(e.run > 1,
  transform(sequence(0L, e.run - 1L), i -> concat(
    left(e.id, length(e.id) - length(substring_index(e.id, ':', -1))),
    CAST(CAST(substring_index(e.id, ':', -1) AS bigint) + i AS string))),
  array(e.id))
"""  # of the messages of a line, which is a run or one event
FINDINGS_MAX: Final = 1000
TOTALS_MAX: Final = 100_000

NODE: Final = "$node/"


class Finding(msgspec.Struct, frozen=True):
    """A message that was ``lost`` or ``doubled`` (for ``client``); ``at``: the time when it was due."""

    what: str
    client: str
    topic: str
    id: str
    qos: int
    at: float


class Total(msgspec.Struct, frozen=True):
    """Counts of a client and topic: ``accepted`` and ``refused`` as a publisher, the others as a receiver."""

    client: str
    topic: str
    accepted: int
    refused: int
    due: int
    delivered: int
    redelivered: int
    acknowledged: int
    dropped: dict[str, int]
    lost: int
    doubled: int
    again: int


class DeliveryAudit(msgspec.Struct, frozen=True):
    """Times in Unix seconds; ``until`` 0.0: no census is in the range, so nothing is audited."""

    nodes: list[str]
    events: int
    since: float
    until: float
    missing: int  # missing batches of events
    waiting: int
    lost: int
    doubled: int
    totals: list[Total]
    findings: list[Finding]

    @property
    def clean(self) -> bool:
        return self.lost == 0 and self.doubled == 0 and self.missing == 0


def events_of(rows: DataFrame) -> DataFrame:
    """Convert rows of a stream to one row per event, with ``kind``, ``node`` and its fields."""
    from pyspark.sql import functions as F

    batches = rows.where("topic LIKE '$events/%'").select(
        F.substring_index("topic", "/", -1).alias("kind"),
        F.from_json(F.col("payload").cast("string"), BATCH).alias("b"),
    )
    lines = batches.select("kind", "b.node", "b.life", "b.batch", F.explode("b.events").alias("e"))
    each = lines.select("*", F.explode(F.expr(IDS)).alias("each"))
    return each.select("kind", "node", "life", "batch", "e.*", "each").drop("id", "run").withColumnRenamed("each", "id")


def audit(spark: SparkSession, events: DataFrame) -> tuple[DeliveryAudit, DataFrame]:
    """Return the result, and a row for each message and receiver."""
    events.localCheckpoint().createOrReplaceTempView("events")  # each step is computed once, and planned separately
    about = spark.sql(ABOUT).collect()[0]
    small = spark.sql("SELECT * FROM events WHERE kind IN ('began', 'waiting')").collect()
    _tell(spark, about.nodes, small)
    spark.sql(MESSAGES).localCheckpoint().createOrReplaceTempView("messages")
    judged = spark.sql(JUDGED).localCheckpoint()
    judged.createOrReplaceTempView("judged")
    return _verdict(spark, about, small), judged


def horizons(nodes: list[str], small: list[Row]) -> tuple[dict[str, int], float]:
    """Return by node the number of the event up to which it is audited (-1: it is not), and the time of that event."""
    ends: dict[str, list[Row]] = {node: [] for node in nodes}
    for row in small:
        if row.kind == "waiting" and not row.client:
            ends[row.node].append(row)
    wanted = 1 if len(nodes) == 1 else 2
    if not nodes or any(len(found) < wanted for found in ends.values()):
        return dict.fromkeys(nodes, -1), 0.0
    for found in ends.values():
        found.sort(key=lambda row: cast(int, row.n))
    until = min(found[-wanted].since for found in ends.values())
    return {
        node: max((row.census for row in found if row.since <= until), default=-1) for node, found in ends.items()
    }, until


def waiting(nodes: list[str], small: list[Row]) -> dict[str, int]:
    """Return by client the maximum that the last census, or one of the last two, counted on each node."""
    total: dict[str, int] = defaultdict(int)
    for node in nodes:
        mine = [row for row in small if row.kind == "waiting" and row.node == node]
        last = sorted(row.census for row in mine if not row.client)[-1 if len(nodes) == 1 else -2 :]
        most: dict[str, int] = defaultdict(int)
        for row in mine:
            if row.client and row.census in last:
                most[row.client] = max(most[row.client], row["count"])
        for client, count in most.items():
            total[client] += count
    return total


def _tell(spark: SparkSession, nodes: list[str], small: list[Row]) -> None:
    """Register the driver's intermediate results as tables."""
    until, _ = horizons(nodes, small)
    began = {
        node: max((row.n for row in small if row.node == node and row.kind == "began"), default=0) for node in nodes
    }
    turned_on = {
        node: max((row.n for row in small if row.node == node and row.reason == "turned_on"), default=0)
        for node in nodes
    }
    told = [(node, until[node], began[node], turned_on[node]) for node in nodes]
    spark.createDataFrame(told, "node string, until bigint, began bigint, turned_on bigint").createOrReplaceTempView(
        "nodes"
    )
    counts = list(waiting(nodes, small).items())
    spark.createDataFrame(counts, "client string, waiting bigint").createOrReplaceTempView("waiting")


MESSAGES: Final = f"""
WITH told AS (
  SELECT e.*, n.until, e.n > n.until AS late,
    (NOT kept AND e.n < n.began) OR e.n < n.turned_on OR (qos = 0 AND client LIKE '{NODE}%') AS excused
  FROM events e JOIN nodes n USING (node)
  WHERE kind IN ('due', 'delivered', 'acknowledged', 'dropped')
    AND id IN (SELECT id FROM events WHERE kind = 'accepted')
), counted AS (
  SELECT client, id, first(topic) AS topic, max(qos) AS qos,
    min(at) FILTER (WHERE kind = 'due') AS at,
    min(n) FILTER (WHERE kind = 'due') AS n,
    count_if(kind = 'due') AS due,
    count_if(kind = 'due' AND late) AS late,
    count_if(kind = 'due' AND NOT late AND excused) AS excused,
    count_if(kind = 'delivered' AND NOT dup) AS delivered,
    count_if(kind = 'delivered' AND dup) AS redelivered,
    count_if(kind = 'acknowledged') AS acknowledged,
    count_if(kind = 'dropped') AS dropped,
    coalesce(bool_or(kind = 'delivered' AND qos = 1), false) AS at_least_once,
    max(struct(at, n)) FILTER (WHERE kind = 'delivered' AND dup AND qos = 2) AS sent_again,
    max(struct(at, n)) FILTER (WHERE kind = 'acknowledged') AS answered
  FROM told GROUP BY client, id
)
SELECT *,
  greatest(0, due - late - excused - delivered - dropped) AS open,
  client NOT LIKE '{NODE}%' AND due > 0
    AND (delivered > due OR (acknowledged >= due AND coalesce(sent_again > answered, false))) AS several
FROM counted
"""  # noqa: S608 a constant

JUDGED: Final = """
WITH clients AS (
  SELECT client, greatest(0, sum(open) - coalesce(first(waiting), 0)) AS missing
  FROM messages LEFT JOIN waiting USING (client) GROUP BY client
)
SELECT client, id, topic, qos, at, due, delivered, redelivered, acknowledged, dropped, excused,
  CAST(open > 0
    AND row_number() OVER (PARTITION BY client, open > 0 ORDER BY at, n, length(id), id) <= missing AS int) AS lost,
  CAST(several AND NOT at_least_once AS int) AS doubled,
  CAST(several AND at_least_once AS int) AS again
FROM messages JOIN clients USING (client)
UNION ALL
SELECT client, id, first(topic), max(qos), min(at), 0, 0, 0, 0, 0, 0, 0, 1, 0
FROM events WHERE kind = 'accepted' GROUP BY client, id HAVING count(*) > 1
"""

TOTALS: Final = f"""
WITH counts AS (
  SELECT client, topic,
    count_if(kind = 'accepted') AS accepted, count_if(kind = 'refused') AS refused, count_if(kind = 'due') AS due,
    count_if(kind = 'delivered' AND NOT dup) AS delivered, count_if(kind = 'delivered' AND dup) AS redelivered,
    count_if(kind = 'acknowledged') AS acknowledged
  FROM events WHERE client <> '' AND kind <> 'waiting' GROUP BY client, topic
), reasons AS (
  SELECT client, topic, map_from_entries(collect_list(struct(reason, number))) AS dropped FROM (
    SELECT client, topic, reason, count(*) AS number FROM events WHERE kind = 'dropped' GROUP BY client, topic, reason
  ) GROUP BY client, topic
), wrong AS (
  SELECT client, topic, sum(lost) AS lost, sum(doubled) AS doubled, sum(again) AS again
  FROM judged GROUP BY client, topic
)
SELECT c.*, r.dropped, coalesce(w.lost, 0) AS lost, coalesce(w.doubled, 0) AS doubled, coalesce(w.again, 0) AS again
FROM counts c LEFT JOIN reasons r USING (client, topic) LEFT JOIN wrong w USING (client, topic)
ORDER BY lost + doubled DESC, client, topic LIMIT {TOTALS_MAX}
"""  # noqa: S608 a constant

ABOUT: Final = """
SELECT array_sort(collect_set(node)) AS nodes, coalesce(sum(events), 0) AS events,
  coalesce(min(since), 0.0D) AS since, coalesce(sum(missing), 0) AS missing
FROM (
  SELECT node, count(*) AS events, min(at) AS since, max(batch) - min(batch) + 1 - count(DISTINCT batch) AS missing
  FROM events GROUP BY node, life
)
"""


def _verdict(spark: SparkSession, about: Row, small: list[Row]) -> DeliveryAudit:
    nodes: list[str] = about.nodes
    _, until = horizons(nodes, small)
    totals = [
        Total(
            row.client, row.topic, row.accepted, row.refused, row.due, row.delivered, row.redelivered,
            row.acknowledged, row.dropped or {}, row.lost, row.doubled, row.again,
        )
        for row in spark.sql(TOTALS).collect()
    ]  # fmt: skip
    wrong = spark.sql("SELECT * FROM judged WHERE lost > 0 OR doubled > 0").cache()
    sums = wrong.selectExpr("coalesce(sum(lost), 0) AS lost", "coalesce(sum(doubled), 0) AS doubled").collect()[0]
    findings = [
        Finding("lost" if row.lost else "doubled", row.client, row.topic, row.id, row.qos, row.at)
        for row in wrong.orderBy("at", "id").limit(FINDINGS_MAX).collect()
    ]
    return DeliveryAudit(
        nodes=nodes,
        events=about.events,
        since=about.since,
        until=until,
        missing=about.missing,
        waiting=sum(waiting(nodes, small).values()),
        lost=sums.lost,
        doubled=sums.doubled,
        totals=totals,
        findings=findings,
    )
