"""Every packet of the QoS 1 and 2 handshakes lost or doubled, in both directions, once, twice and at random.

What must hold: QoS 2 arrives exactly once, QoS 1 at least once, first appearances keep their order, and every publish
is completed exactly once.
"""

from __future__ import annotations

from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from starlingmq.wire.packets import Packet

from .script import DOUBLE, LOSE, PASS, Journey

VERSIONS = [4, 5]
MESSAGES = [b"one", b"two", b"three"]


def first_appearances(payloads: list[bytes]) -> list[bytes]:
    return list(dict.fromkeys(payloads))


def travel(version: int, qos: int, outward: bool, verdicts: dict[int, str]) -> Journey:
    """Send MESSAGES one way; ``verdicts`` by number of the transmission."""

    def fault(number: int, _packet: Packet) -> str:
        return verdicts.get(number, PASS)

    journey = Journey(version, fault)
    journey.open()
    if outward:
        for payload in MESSAGES:
            journey.client.state.publish("t", payload, qos)
        journey.run()
    else:
        journey.run()  # connected first: what is said before would be lost on a line that is not there
        for payload in MESSAGES:
            journey.say(journey.server.deliver(payload, qos))
        journey.run()
    return journey


def check(journey: Journey, qos: int, outward: bool, verdicts: dict[int, str]) -> None:
    arrived = journey.server.routed if outward else journey.received
    assert first_appearances(arrived) == MESSAGES, verdicts
    if qos == 2:
        assert len(arrived) == len(MESSAGES), verdicts
    if outward:
        assert sorted(journey.completed) == [1, 2, 3], verdicts
        assert journey.client.state.outstanding == 0


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("outward", [True, False], ids=["to the server", "to the client"])
@pytest.mark.parametrize("verdict", [LOSE, DOUBLE])
def test_each_packet_once(version: int, qos: int, outward: bool, verdict: str) -> None:
    for number in count():
        journey = travel(version, qos, outward, {number: verdict})
        check(journey, qos, outward, {number: verdict})
        if number >= journey.transmissions:
            assert number > 3, "there was something to lose"
            return


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("outward", [True, False], ids=["to the server", "to the client"])
def test_each_pair_of_packets(version: int, outward: bool) -> None:
    for first in range(16):
        for second in range(first + 1, 30):
            for one, other in ((LOSE, LOSE), (LOSE, DOUBLE), (DOUBLE, LOSE)):
                verdicts = {first: one, second: other}
                check(travel(version, 2, outward, verdicts), 2, outward, verdicts)


@given(
    version=st.sampled_from(VERSIONS),
    qos=st.sampled_from([1, 2]),
    outward=st.booleans(),
    verdicts=st.dictionaries(st.integers(0, 60), st.sampled_from([LOSE, DOUBLE]), max_size=25),
)
def test_any_faults(version: int, qos: int, outward: bool, verdicts: dict[int, str]) -> None:
    check(travel(version, qos, outward, verdicts), qos, outward, verdicts)
