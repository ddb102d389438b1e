"""``make bench-pipeline``: streams into Spark, on this machine. A broker and its service, one Spark of one core; by
wall clock and by CPU, since the machine is shared.

    source     a batch query from a stream into a sink that does nothing
    baseline   messages through an MQTT client (paho) into memory, and from there into Spark; the same ones by stream
    fresh      time from a publish until a streaming query with a trigger of 500 ms writes its row
    parquet, kafka, decode   the same rows from elsewhere, and binary payloads (bench/pipeline_formats.py)
    sink       rows into a topic of a stream, QoS 1, each once
    beside     time until PUBACK of a publisher, alternately alone and during a bulk read at full speed; the
               reader, which stands for another machine, has the lowest priority, and in a variant the normal one

At the end it prints the goals and the results, with a table of the usual way and of streams.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from threading import Event
from typing import Any

import numpy as np
from paho.mqtt.client import Client as PahoClient
from paho.mqtt.client import MQTTMessage
from paho.mqtt.enums import CallbackAPIVersion
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from tests.clients.paho_thread import disconnect

from bench.beside import beside
from bench.frames import publish
from bench.pipeline_formats import decode, kafka, parquet
from bench.process import cpu_seconds
from bench.streams_broker import PAYLOAD, TOKEN, TOPICS, WINDOW, Broker
from bench.wire import open_connection
from starlingmq.spark import register

IDLE_S = 3.0  # silence after which no message is expected


def packages() -> dict[str, bool | float | int | str | None]:
    """Spark's Kafka source, if ``make test-lake`` has fetched it."""
    if "STARLINGMQ_LAKE" not in os.environ:
        return {}
    from tests.lake.session import jars

    return {"spark.jars": jars()}


def begin_spark(directory: str) -> SparkSession:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    session = (
        SparkSession.builder.master("local[1]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.memory", "2g")
        .config(map=packages())
        .config("spark.sql.warehouse.dir", f"{directory}/warehouse")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    register(session)
    return session


def measured(act: Callable[[], object], *pids: int) -> tuple[float, list[float]]:
    """Return seconds, and CPU seconds of each process with its children."""
    before = [cpu_seconds(pid) for pid in pids]
    began = time.monotonic()
    act()
    took = time.monotonic() - began
    return took, [cpu_seconds(pid) - earlier for pid, earlier in zip(pids, before, strict=True)]


def source(spark: SparkSession, broker: Broker, rows: int, rounds: int) -> dict[str, Any]:
    options = {"servers": broker.address, "token": TOKEN, "stream": "all", "rowsPerPartition": str(rows)}

    def query() -> None:
        spark.read.format("starlingmq").options(**options).load().write.format("noop").mode("overwrite").save()

    query()  # warm-up: Spark compiles the query
    found = [measured(query, os.getpid(), broker.service) for _ in range(rounds)]
    took, (spark_cpu, service_cpu) = min(found)
    return {
        "rows": rows,
        "rows_per_s": round(rows / took),
        "rows_per_s_of_spark_cpu": round(rows / spark_cpu),
        "rows_per_s_of_service_cpu": round(rows / max(service_cpu, 0.01)),
        "rows_per_s_of_all_cpu": round(rows / (spark_cpu + service_cpu)),
    }


def lost_and_doubled(numbers: list[int], rows: int) -> dict[str, int]:
    distinct = len(set(numbers))
    return {"rows": rows, "lost": rows - distinct, "doubled": len(numbers) - distinct}


def baseline(spark: SparkSession, broker: Broker, rows: int) -> dict[str, Any]:
    """The usual way without streams: an MQTT client on the driver, its messages in a list, a DataFrame of the list; and
    the same messages by stream, written to the same sink.
    """
    got: list[tuple[str, bytearray, int]] = []
    done, subscribed = Event(), Event()
    client = PahoClient(CallbackAPIVersion.VERSION2)

    def on_message(client: PahoClient, data: object, message: MQTTMessage) -> None:
        got.append((message.topic, bytearray(message.payload), message.qos))
        if len(got) >= rows:
            done.set()

    client.on_message = on_message
    client.on_subscribe = lambda *_: subscribed.set()
    client.connect("127.0.0.1", broker.port)
    client.loop_start()
    client.subscribe("b/#", 1)
    subscribed.wait(30)
    filler = subprocess.Popen([sys.executable, "-m", "bench.pipeline", "--fill", str(broker.port), "--rows", str(rows)])

    idle = 0.0

    def query() -> None:
        nonlocal idle
        filler.wait(120)
        before = -1
        while not done.is_set() and len(got) > before:  # messages dropped by a full queue never arrive
            before = len(got)
            done.wait(IDLE_S)
        idle = 0.0 if done.is_set() else IDLE_S
        frame = spark.createDataFrame(list(got), "topic string, payload binary, qos int")
        frame.write.format("noop").mode("overwrite").save()

    took, (cpu,) = measured(query, os.getpid())
    disconnect(client)
    rates = {"rows_per_s": round(len(got) / (took - idle)), "rows_per_s_of_spark_cpu": round(len(got) / cpu)}
    numbers = [int(bytes(payload)) for _, payload, _ in got]
    options = {"servers": broker.address, "token": TOKEN, "stream": "baseline"}
    frame = spark.read.format("starlingmq").options(**options).load()

    def by_stream() -> None:
        frame.write.format("noop").mode("overwrite").save()

    by_stream()  # warm-up: Spark compiles the query, which a DataFrame of a list does not need
    took, (cpu,) = measured(by_stream, os.getpid())
    ours = {"rows_per_s": round(rows / took), "rows_per_s_of_spark_cpu": round(rows / cpu)}
    kept = [int(bytes(row.payload)) for row in frame.select("payload").collect()]
    return {"mqtt": rates | lost_and_doubled(numbers, rows), "stream": ours | lost_and_doubled(kept, rows)}


def fresh(spark: SparkSession, broker: Broker, directory: str, samples: int) -> dict[str, Any]:
    """Payloads are the time of publishing; a sink on the driver compares it with the clock."""
    delays: list[float] = []

    def look(batch: Any, number: int) -> None:
        rows = batch.select("payload").collect()
        now = time.time()
        delays.extend(now - float(bytes(row.payload)) for row in rows)

    options = {"servers": broker.address, "token": TOKEN, "stream": "all", "topicFilter": "t/fresh"}
    rows = spark.readStream.format("starlingmq").options(**options).load()
    writer = rows.writeStream.foreachBatch(look).option("checkpointLocation", f"{directory}/fresh")
    query = writer.trigger(processingTime="500 milliseconds").start()
    sock = open_connection(broker.port, "fresh", 4)
    end = time.monotonic() + 120
    while len(delays) < samples and time.monotonic() < end and query.isActive:
        sock.sendall(publish("t/fresh", f"{time.time():.6f}".encode(), 0, 0, 4))
        time.sleep(0.1)
    query.stop()
    sock.close()
    warm = np.array(delays[len(delays) // 3 :]) * 1000
    median, p99 = (round(float(np.percentile(warm, share))) for share in (50, 99))
    return {"samples": len(warm), "median_ms": median, "p99_ms": p99}


def sink(spark: SparkSession, broker: Broker, rows: int, rounds: int) -> dict[str, Any]:
    options = {"servers": f"mqtt://127.0.0.1:{broker.port}"}
    topics = F.concat(F.lit("t/"), (F.col("id") % TOPICS).cast("string")).alias("topic")
    found = spark.range(rows, numPartitions=1).select(topics, F.lit("x" * PAYLOAD).alias("payload"))
    times = []
    for _ in range(rounds + 1):  # the first one starts Spark's workers
        writer = found.write.format("starlingmq").mode("append").options(**options)
        times.append(measured(writer.save, broker.process.pid))
    took = sorted(seconds for seconds, _ in times[1:])[rounds // 2]
    cpu = sorted(used[0] for _, used in times[1:])[rounds // 2]
    return {"rows_per_s": round(rows / took), "rows_per_broker_cpu_s": round(rows / cpu)}


def goals(found: dict[str, Any]) -> Iterator[str]:
    """Return the goals and the results."""

    def at_least(what: str, wanted: float, value: float) -> str:
        return f"{'met   ' if value >= wanted else 'MISSED'}  {what}: {value:,} (wanted: {wanted:,} or more)"

    def at_most(what: str, wanted: float, value: float) -> str:
        return f"{'met   ' if value <= wanted else 'MISSED'}  {what}: {value:,} (wanted: {wanted:,} or less)"

    if "source" in found:
        rate = found["source"]["rows_per_s_of_spark_cpu"]
        yield at_least("rows per second of Spark's CPU, into a sink that does nothing", 1_000_000, rate)
    if "kafka" in found:
        yield at_least("these, to those of Spark's Kafka source", 1.0, found["kafka"]["times_kafka"])
    if "parquet" in found:
        times = found["parquet"]["times_the_cpu"]
        yield at_most("CPU of the stream into Parquet, to that of Parquet into Parquet", 1.5, times)
    if "fresh" in found:
        what = "ms from publish to a micro-batch, trigger 500 ms,"
        yield at_most(f"{what} p50", 500, found["fresh"]["median_ms"])
        yield at_most(f"{what} p99", 1000, found["fresh"]["p99_ms"])
    if "beside" in found:
        where = "apart" if "apart" in found["beside"] else "together"
        taken = found["beside"][where]["messages_per_s"]
        for name in ("median", "p99"):
            ratios = found["beside"][f"{name}_ratio"]
            what = f"publish {name} with a reader to that without, at {taken:,.0f} messages/s"
            yield at_most(f"{what}, {where}", 1.5, ratios[where])
            same, greedy = ratios["together"], ratios["greedy"]
            yield f"        on the same processors: {same:,}; with a reader that is not nice: {greedy:,}"
    if "sink" in found:
        yield at_least("rows/s of the sink, QoS 1", 300_000, found["sink"]["rows_per_s"])
    for name, rate in found.get("decode", {}).items():
        yield at_least(f"decoded rows per second of CPU, {name}", 200_000, rate)
    if "baseline" in found:
        yield f"{'way':<24}{'rows/s':>12}{'of Spark CPU':>14}{'lost':>8}{'doubled':>9}"
        for way, name in (("mqtt", "paho into memory"), ("stream", "stream, source")):
            one = found["baseline"][way]
            rates = f"{one['rows_per_s']:>12,}{one['rows_per_s_of_spark_cpu']:>14,}"
            yield f"{name:<24}{rates}{one['lost']:>8,}{one['doubled']:>9,}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.pipeline", description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rate", type=float, default=20_000.0)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--samples", type=int, default=120, help="of fresh")
    parser.add_argument("--only", default="source,baseline,fresh,sink,beside,parquet,decode")
    parser.add_argument("--fill", type=int, metavar="PORT", help="publish to b/# at QoS 1")
    given = parser.parse_args()
    if given.fill:
        broker = Broker.__new__(Broker)
        broker.port = given.fill
        broker.fill_numbered(given.rows)
        return
    wanted = given.only.split(",")
    found: dict[str, Any] = {}

    def tell(name: str, figures: dict[str, Any]) -> None:
        found[name] = figures
        print(json.dumps({name: figures}), flush=True)

    with tempfile.TemporaryDirectory(prefix="bench-pipeline-") as directory:
        broker = Broker(f"{directory}/data")
        try:
            rows = -(-given.rows // WINDOW) * WINDOW
            took, _ = measured(lambda: broker.fill(rows))
            print(json.dumps({"filled": rows, "messages_per_s": round(rows / took)}), flush=True)
            if "beside" in wanted:
                tell("beside", beside(broker, given.rate, given.seconds, rows, given.rounds))
            if {"source", "baseline", "fresh", "sink", "parquet", "decode", "kafka"} & set(wanted):
                spark = begin_spark(directory)
                if "source" in wanted:
                    tell("source", source(spark, broker, rows, given.rounds))
                if "parquet" in wanted:
                    tell("parquet", parquet(spark, broker, rows, directory, given.rounds))
                if "kafka" in wanted:
                    tell("kafka", kafka(spark, broker, rows, given.rounds))
                if "decode" in wanted:
                    tell("decode", decode(spark, broker, rows, directory, given.rounds))
                if "sink" in wanted:
                    tell("sink", sink(spark, broker, rows // 4, given.rounds))
                if "fresh" in wanted:
                    tell("fresh", fresh(spark, broker, directory, given.samples))
                if "baseline" in wanted:
                    few = max(WINDOW, rows // 20 // WINDOW * WINDOW)
                    tell("baseline", baseline(spark, broker, few))
                spark.stop()
            print("\n".join(goals(found)), flush=True)
        finally:
            broker.stop()


if __name__ == "__main__":
    main()
