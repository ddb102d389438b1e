"""One message through two nodes of a real cluster, as a collector of OpenTelemetry has it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.real import Cluster
from tests.otel.collector import Collector, words

from starlingmq.client import Client
from starlingmq.wire.properties import USER_PROPERTY

pytestmark = [
    pytest.mark.slow,
    pytest.mark.long(kept="tests/otel/test_steps.py"),
    pytest.mark.timeout(150),
    pytest.mark.skipif(shutil.which("etcd") is None, reason="etcd is not installed"),
]

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


async def test_one_trace_has_the_spans_of_both_nodes(tmp_path: Path) -> None:
    with Collector() as collector:

        def trace(settings: dict[str, Any]) -> None:
            settings["tracing"] = {"endpoint": collector.url, "ratio": 0.0}

        cluster = Cluster(tmp_path, 3)
        for node in cluster.nodes:
            node.configure(trace)
        with cluster:
            await cluster.whole()
            one, two = cluster.nodes[0], cluster.nodes[1]
            async with Client(two.url, client_id="reader") as reader, Client(one.url, client_id="author") as author:
                await reader.subscribe("a/#", qos=1)
                await author.publish("a/b", b"x", qos=1, properties={USER_PROPERTY: [("traceparent", PARENT)]})
                assert (await anext(reader.messages())).payload == b"x"  # and it is acknowledged
                names = [f"{one.name} {name}" for name in ("accept", "forward")]
                names += [f"{two.name} {name}" for name in ("arrive", "deliver", "acknowledge")]
                found = await collector.until(*names)
            accept, forward, arrive, deliver, acknowledge = (found[name] for name in names)
            assert {span.trace_id.hex() for span in found.values()} == {PARENT[3:35]}
            assert accept.parent_span_id.hex() == PARENT[36:52]
            for span, parent in ((forward, accept), (arrive, forward), (deliver, arrive), (acknowledge, deliver)):
                assert span.parent_span_id == parent.span_id, span.name
            assert words(deliver)["messaging.client.id"] == "reader"
            assert len({words(span)["messaging.message.id"] for span in found.values()}) == 1
