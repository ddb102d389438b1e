"""The answers to CONNECT packets that are malformed, refused, or change a session."""

from __future__ import annotations

import pytest
from tests.conformance.kit import connect_frame, utf8
from tests.harness import World

from starlingmq.core.context.ready import SESSION_PUT
from starlingmq.wire.mqtt import (
    Connack,
)
from starlingmq.wire.properties import SESSION_EXPIRY_INTERVAL
from starlingmq.wire.reasons import Reason


def test_a_long_malformed_connect_is_answered_like_a_short_one() -> None:
    w = World()
    c = w.open(version=5)
    c.send(connect_frame(5, utf8("c" * 300) + b"trailing"))
    assert c.expect(Connack).reason == Reason.MALFORMED_PACKET


def test_every_version_is_told_that_the_connection_limit_is_reached() -> None:
    w = World(max_connections=1)
    w.connect("first")
    for version in (3, 4, 5):
        late = w.connect(f"late{version}", version=version)
        late_output = late.output
        assert late.closed and late_output[0] == 0x20
        assert late_output[3] == (Reason.SERVER_BUSY if version == 5 else 3)


@pytest.mark.parametrize("reason", [0x18, 0xFE])
def test_an_invalid_reason_code_of_an_authenticator_refuses_the_client(reason: int) -> None:
    w = World(ask_authenticate=True)
    c = w.connect("c", answer=reason)
    assert c.closed
    assert c.output[3] == Reason.UNSPECIFIED_ERROR


def test_a_reconnection_that_sets_session_expiry_0_is_stored() -> None:
    w = World(recording=True)
    w.connect("c", properties={SESSION_EXPIRY_INTERVAL: 100}).drop()
    w.writes.clear()
    assert w.connect("c", clean_start=False).connack.session_present
    assert [write.kind for write in w.writes] == [SESSION_PUT]
