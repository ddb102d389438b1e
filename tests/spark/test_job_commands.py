"""Jobs, and pipelines that cannot run, as commands in a terminal."""

from __future__ import annotations

import asyncio
import json
import re
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from starlingmq import Broker
from starlingmq.client import Client
from starlingmq.config.settings import load_config
from starlingmq.core.messages.outgoing import Outgoing
from tests.patience import within
from tests.spark.brokers import TOKEN, StreamBroker, batches_of
from tests.spark.test_pipeline import command, tree, written

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

EACH = 40  # messages of a topic and part
TOPICS = ("a/x", "a/y", "b")


def kept(broker: StreamBroker) -> list[dict[str, Any]]:
    return [row for _, batch in batches_of(broker.options) for row in batch.to_pylist()]


@pytest.mark.long(kept="tests/spark/test_jobs.py::test_an_archive_is_made_of_batches_and_merged_whoever_dies")
def test_an_archive_is_made_published_again_and_reported_on(broker: StreamBroker, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(TOKEN)
    of_stream = ["--server", broker.address, "--stream", "all", "--token-file", str(tmp_path / "token")]
    of_stream += ["--topics", "a/#", "--topics", "b"]
    archive = str(tmp_path / "archive")
    for part in range(2):  # the replay has to keep the time between the two runs
        for topic in TOPICS:
            broker.publish([b"%d" % number for number in range(part * EACH, (part + 1) * EACH)], topic)
        done = command(tmp_path, "archive", archive, *of_stream, "--once", "--json")
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout.splitlines()[-1])["rows"] == EACH * len(TOPICS), "from where it was"
    times = [row["timestamp"].timestamp() for row in kept(broker)]
    lasted = max(times) - min(times)
    order = [b"%d" % number for number in range(2 * EACH)]
    for speed, least in (("1", lasted), ("10", lasted / 10), ("max", 0.0)):
        prefix = f"again{speed}/"
        done = command(tmp_path, "replay", archive, "--to", broker.url, "--speed", speed, "--prefix", prefix, "--json")
        assert done.returncode == 0, done.stderr
        told = json.loads(done.stdout)
        assert told["messages"] == 2 * EACH * len(TOPICS) and told["seconds"] >= least - 0.01, (told, lasted)
        rows = kept(broker)
        for topic in TOPICS:
            assert [row["payload"] for row in rows if row["topic"] == prefix + topic] == order, (speed, topic)
    page = tmp_path / "traffic.html"
    for words in (["--archive", archive], of_stream):
        done = command(tmp_path, "report", str(page), *words)
        assert (done.returncode, done.stdout) == (0, f"{page}: 240 messages of 6 clients on 3 topics\n"), done.stderr
        text = page.read_text()
        assert text.startswith("<!doctype html>") and text.count("<svg") == 3
        page.unlink()
    refused = command(tmp_path, "replay", archive, "--to", broker.url, "--speed", "fast")
    assert refused.returncode == 2 and "--speed: 'fast' is not a number above 0, or max" in refused.stderr


@pytest.mark.long(kept="tests/spark/test_pipeline.py::test_settings_that_can_not_be")
def test_a_pipeline_that_can_not_run_says_why_in_one_line(broker: StreamBroker, tmp_path: Path) -> None:
    """The last line; Spark, once it runs, has its own before that."""
    good = tree(tmp_path, broker.address)
    sql = len(yaml.safe_dump(good).splitlines()) + 2
    source = good["source"]
    cases: dict[str, dict[str, Any]] = {
        "source: .*there is no stream none": {"source": source | {"stream": "none"}},
        "source: .*127.0.0.1:1 does not answer": {"source": source | {"servers": ["127.0.0.1:1"]}},
        "decode.schema: .*STRANGE": {"decode": {"format": "json", "schema": "id strange"}},
    }
    texts = {words: yaml.safe_dump(good | more) for words, more in cases.items()}
    for words, query in {
        f"{sql}: step result: .*UNRESOLVED_COLUMN.*nothing": "SELECT nothing FROM rows",
        f"{sql}: step result: .*DATATYPE_MISMATCH": "SELECT array(topic) + 1 AS x FROM rows",
        "hot: .*no good": "SELECT topic, raise_error('no good') AS x FROM rows",
    }.items():
        texts[words] = f"{yaml.safe_dump(good)}steps:\n  - sql: {query}\n"
    broker.publish([b"a message"])
    for words, text in texts.items():
        file = written(tmp_path, text)
        done = command(tmp_path, "run", "--once", str(file))
        said = [line for line in done.stderr.splitlines() if str(file) in line]
        assert done.returncode == 2 and done.stdout == "" and len(said) == 1, done.stderr
        assert said[0] == done.stderr.splitlines()[-1] and "Traceback" not in done.stderr, done.stderr
        assert re.search(rf"{re.escape(str(file))}:( |){words}", said[0]), said[0]


@pytest.mark.long(kept="tests/spark/test_audit.py::test_a_planted_loss_and_a_planted_duplicate_are_found")
def test_a_report_and_an_audit_of_an_empty_range_say_so(broker: StreamBroker, tmp_path: Path) -> None:
    broker.publish([b"x"])
    (tmp_path / "token").write_text(TOKEN)
    words = ["--server", broker.address, "--stream", "all", "--token-file", str(tmp_path / "token")]
    words += ["--since", "2100-01-01T00:00:00"]
    for job, told in (
        (["report", str(tmp_path / "page.html")], "stream all: contains no messages to report on"),
        (["audit"], r"stream all contains no audit events"),
    ):
        done = command(tmp_path, *job, *words)
        assert done.returncode == 2 and "Traceback" not in done.stderr, done.stderr
        assert told in done.stderr.splitlines()[-1], done.stderr


@pytest.mark.long(kept="tests/spark/test_audit.py::test_a_planted_loss_and_a_planted_duplicate_are_found")
async def test_an_audit_finds_what_was_lost_and_doubled_on_purpose(tmp_path: Path) -> None:
    """In what waits for a client that takes one after the other: one message is gone, another one is there twice."""
    (tmp_path / "token").write_text(TOKEN)
    settings = [f"node.data_dir={tmp_path / 'data'}", "node.name=n1", "streams.listen=127.0.0.1:0"]
    settings += [f"streams.token={TOKEN}", "streams.define=[{name: events, topics: ['$events/#']}]"]
    async with Broker(load_config(None, settings), listeners=["mqtt://127.0.0.1:0"]) as broker:
        async with (
            Client(broker.address(), client_id="reader", receive_maximum=1) as reader,
            Client(broker.address(), client_id="author") as author,
        ):
            assert await reader.subscribe("a/#", qos=2) == [2]
            for number in range(10):
                await author.publish(f"a/{number}", b"%d" % number, qos=2)
            queue = broker.state.ctx.sessions["reader"].queue
            assert queue is not None and [one.message.payload for one in queue.items] == [
                b"%d" % n for n in range(1, 10)
            ]
            queue.pop()
            queue.push(Outgoing(queue.items[0].message, 2, False, b"", None), time.time())
            got = []
            async with within(60):
                async for message in reader.messages():
                    got.append(message.payload)
                    if len(got) == 10:
                        break
            assert got == [b"0", *(b"%d" % number for number in range(2, 10)), b"2"]
        words = ["audit", "--server", broker.read_at, "--stream", "events", "--token-file", str(tmp_path / "token")]
        async with within(600):
            while True:  # until the next census, which comes every two seconds
                done = await asyncio.to_thread(command, tmp_path, *words)
                if "no result" not in done.stdout and "0 lost" not in done.stdout:
                    break
    assert done.returncode == 1 and "1 lost, 1 doubled, 0 wait" in done.stdout, done.stdout + done.stderr
    assert re.search(r"^lost: message \S+ on a/1 \(QoS 2, .*\) for reader$", done.stdout, re.MULTILINE)
    assert re.search(r"^doubled: message \S+ on a/2 \(QoS 2, .*\) more than once at reader$", done.stdout, re.MULTILINE)
