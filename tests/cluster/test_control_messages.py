"""Messages for a node itself, between the messages for its clients in one blob."""

from __future__ import annotations

from starlingmq.core.delivery.forward_batch import FOR_THE_NODE, ForwardReader, count_tracked, encode_forward
from starlingmq.core.messages.message import Message


def message(topic: bytes, payload: bytes, sequence: int) -> Message:
    found = Message(topic, payload, 1, False, b"", 0.0, "", 5.0)
    found.sequence = sequence
    return found


def test_a_message_for_the_node_is_told_from_those_for_clients() -> None:
    blob = b"".join(
        [
            encode_forward(message(b"t", b"one", 1), b"", False, 5.0),
            encode_forward(message(b"$node", b"two", 2), FOR_THE_NODE, True, 5.0),
            encode_forward(message(b"t", b"three", 3), b"$share/g/t", True, 5.0),
            encode_forward(message(b"t", b"", 4), b"", False, 5.0),
        ]
    )
    reader, read = ForwardReader(blob, 7, 5.0), []
    while reader.left():
        forward = reader.next()
        read.append((forward.group, forward.message.topic, forward.message.payload, forward.message.sequence))
    assert read == [
        (b"", b"t", b"one", 1),
        (FOR_THE_NODE, b"", b"two", 2),
        (b"$share/g/t", b"t", b"three", 3),
        (b"", b"t", b"", 4),
    ]
    assert count_tracked(blob) == 2


def test_a_message_for_the_node_takes_few_bytes_more_than_its_payload() -> None:
    assert len(encode_forward(message(b"$node", b"x", 2), FOR_THE_NODE, True, 5.0)) == 1 + 14
