"""A failed call to etcd is reported in words, not in those of gRPC."""

from __future__ import annotations

import pytest

from starlingmq.cli.local_cluster import free_ports
from starlingmq.net.etcd.call_problems import in_words
from starlingmq.net.etcd.etcd_calls import STATUS, EtcdCalls, EtcdError
from starlingmq.net.proto import etcd_pb2 as pb

REFUSED = "it refuses connections; check that it runs there"


@pytest.mark.parametrize(
    ("details", "words"),
    [
        (
            "failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:2085: Failed to connect to "
            "remote host: Connection refused",
            REFUSED,
        ),
        ("Socket closed", "the connection was closed"),
        ("Internal error from Core", "the connection was closed"),
        ("Stream removed", "the connection was closed"),
        ("keepalive watchdog timeout", "the connection was closed"),
        ("Deadline Exceeded", "no answer in time"),
        ("DNS resolution failed for nowhere:2379: C-ares status is not ARES_SUCCESS", "its name cannot be resolved"),
        ("etcdserver: mvcc: database space exceeded", "mvcc: database space exceeded"),
        ("etcdserver: no leader", "no leader"),
    ],
)
def test_reasons_of_grpc_are_replaced(details: str, words: str) -> None:
    assert in_words(details) == words


async def test_an_endpoint_where_nothing_listens_is_told_in_words() -> None:
    (port,) = free_ports(1)
    calls = EtcdCalls([f"127.0.0.1:{port}"])
    try:
        with pytest.raises(EtcdError) as refused:
            await calls.ask(STATUS, pb.StatusRequest())
        assert str(refused.value) == f"etcd at 127.0.0.1:{port}: {REFUSED}"
    finally:
        await calls.close()
