"""Numbers that clients send, however large, do no harm."""

import math

import pytest

from starlingmq.core.streams.acknowledgements import nak_delay
from starlingmq.core.streams.publish_headers import time_to_live
from starlingmq.core.streams.pull_requests import read_request

LARGE = b"9" * 400


@pytest.mark.parametrize("delay", [b'{"delay":%b}' % LARGE, b"%bs" % LARGE, b"9e9"])
def test_a_message_is_refused_for_a_time_that_ends(delay: bytes) -> None:
    assert math.isfinite(nak_delay(b"-NAK " + delay))


@pytest.mark.parametrize("name", ["expires", "batch", "max_bytes", "idle_heartbeat", "priority"])
@pytest.mark.parametrize("sign", [b"", b"-"])
def test_a_pull_request_with_such_a_number_is_refused(name: str, sign: bytes) -> None:
    with pytest.raises(ValueError, match="Bad Request - "):
        read_request(b'{"%b":%b%b}' % (name.encode(), sign, LARGE))


def test_heartbeats_leave_time_for_others() -> None:
    assert read_request(b'{"idle_heartbeat":1,"expires":3600000000000}').heartbeat == 0.1
    assert read_request(b'{"idle_heartbeat":5000000000,"expires":3600000000000}').heartbeat == 5.0
    assert read_request(b'{"idle_heartbeat":-5}').heartbeat == 0.0


@pytest.mark.parametrize("value", [LARGE + b"h", b"9" * 30 + b"h"])
def test_a_time_to_live_that_is_too_long_is_invalid(value: bytes) -> None:
    assert time_to_live(value) == 0.0
    assert time_to_live(b"1000000h") == 3.6e9
