"""Archive, replay and report, and pipelines that can not run, as the commands that somebody types."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.spark.brokers import TOKEN, StreamBroker, batches_of
from tests.spark.test_pipeline import command, tree, written

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(900)]

EACH = 40  # messages of a topic and part
TOPICS = ("a/x", "a/y", "b")


def kept(broker: StreamBroker) -> list[dict[str, Any]]:
    return [row for _, batch in batches_of(broker.options) for row in batch.to_pylist()]


def test_an_archive_is_made_published_again_and_reported_on(broker: StreamBroker, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(TOKEN)
    of_stream = ["--server", broker.address, "--stream", "all", "--token-file", str(tmp_path / "token")]
    of_stream += ["--topics", "a/#", "--topics", "b"]
    archive = str(tmp_path / "archive")
    for part in range(2):  # what the command takes between the two is what the replay has to keep to
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
    assert refused.returncode == 2 and "--speed: 'fast' is neither a number above 0 nor max" in refused.stderr


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
