"""Requests and the right to reply to them, where requester and service are at different nodes."""

from __future__ import annotations

from typing import Any

import pytest
from tests.auth.test_acl import acl
from tests.cluster.fleet import Fleet
from tests.nats.talk import Msg, connect

from starlingmq.wire.mqtt import Publish, Subscribe, SubscribeRequest
from starlingmq.wire.properties import RESPONSE_TOPIC, encode_property_bytes

RULES = acl("""rules:
  - {allow: [subscribe, group], topics: ["svc/#"]}
  - {allow: reply, topics: ["_INBOX/#"]}
""")


@pytest.mark.parametrize("subscribe", ["SUB svc.> 1", "SUB svc.> crew 1"], ids=["subscriber", "group"])
@pytest.mark.parametrize("protocol", ["nats", "mqtt"])
def test_a_service_replies_once_to_a_request_from_another_node(subscribe: str, protocol: str) -> None:
    fleet = Fleet(2)
    fleet.run()
    service = connect(fleet[1])
    state = fleet[1].state

    def rights_of(client: Any) -> Any:
        return RULES.rights("", "svc", "") if client is service.client else None

    state.ctx.rights_of = rights_of
    state.entitle()
    service.send(subscribe)
    if protocol == "nats":
        asker = connect(fleet[0])
        asker.send("SUB _INBOX.> 9")
        fleet.advance(0.5)
        asker.heard()
        asker.pub("svc.add", b"1", reply="_INBOX.1")
    else:
        device = fleet.connect(0, "device")
        device.send(Subscribe(1, [SubscribeRequest(b"_INBOX/#", 0)]))
        fleet.advance(0.5)
        device.receive()
        device.send(Publish(b"svc/add", b"1", 0, False, False, 0, encode_property_bytes({RESPONSE_TOPIC: "_INBOX/1"})))
    fleet.advance(0.5)
    assert [frame for frame in service.heard() if isinstance(frame, Msg)] == [Msg("svc.add", "1", b"1", "_INBOX.1")]
    for subject in ("_INBOX.2", "_INBOX.1", "_INBOX.1"):
        service.pub(subject, b"2")
    fleet.advance(0.5)
    refused = [f"-ERR 'Permissions Violation for Publish to \"_INBOX.{number}\"'" for number in (2, 1)]
    assert service.heard() == refused
    if protocol == "nats":
        assert asker.heard() == [Msg("_INBOX.1", "9", b"2")]
    else:
        assert [(one.topic, one.payload) for one in device.receive() if isinstance(one, Publish)] == [
            (b"_INBOX/1", b"2")
        ]
