"""Subscribing clients of a fleet."""

from __future__ import annotations

from tests.harness import FakeClient

from starlingmq.wire.mqtt import Publish, Suback, Subscribe, SubscribeRequest


def subscribe(client: FakeClient, filter: bytes, qos: int = 0) -> None:
    client.send(Subscribe(1, [SubscribeRequest(filter, qos)]))
    assert client.expect(Suback).reasons == [qos]


def payloads(client: FakeClient) -> list[bytes]:
    return [packet.payload for packet in client.receive() if isinstance(packet, Publish)]
