"""Envelopes as bytes: what goes in comes out, alone and in batches, and nothing else gets through."""

from __future__ import annotations

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st
from tests.cluster.frame_strategies import envelopes, numbers

from starlingmq.cluster.links.peer_frames import Body, Data, Envelope, SyncRequest
from starlingmq.net.peers import peer_codec
from starlingmq.net.peers.peer_codec import BODIES, FrameError, decode, encode, join, split
from starlingmq.net.proto import peers_pb2 as pb


@given(envelopes)
def test_an_envelope_comes_out_as_it_went_in(envelope: Envelope) -> None:
    assert decode(encode(envelope)) == envelope


@given(st.lists(envelopes, max_size=5))
def test_a_batch_keeps_its_order(several: list[Envelope]) -> None:
    batch = join(map(encode, several))
    assert split(batch) == several
    # Not by bytes: the entries of a map may stand in any order.
    assert pb.Dialler.FromString(batch) == pb.Dialler(envelopes=[pb.Envelope.FromString(encode(e)) for e in several])


def test_every_body_has_its_field() -> None:
    assert set(BODIES) == set(Body.__args__)
    fields = {field.name for field in pb.Envelope.DESCRIPTOR.oneofs_by_name["body"].fields}
    assert {name for name, _, _ in BODIES.values()} == fields


@given(st.binary(max_size=200))
def test_any_bytes_are_an_envelope_or_one_clear_error(data: bytes) -> None:
    for read in (decode, split):
        try:
            read(data)
        except FrameError as error:
            assert str(error) and "\n" not in str(error)


@given(envelopes, st.data())
def test_a_truncated_frame_is_an_error(envelope: Envelope, data: st.DataObject) -> None:
    whole = join([encode(envelope)])
    cut = data.draw(st.integers(1, len(whole) - 1))
    with pytest.raises(FrameError, match=r"^a message of \d+ bytes is malformed$"):
        split(whole[:cut])


def test_a_large_blob_goes_through() -> None:
    envelope = Envelope(1, 2, 3, 4, Data(5, 6, bytes(3_000_000)))
    assert split(join([encode(envelope)] * 2)) == [envelope, envelope]


def test_additions_of_later_versions_are_ignored() -> None:
    known = Envelope(1, 1, 2, 0, SyncRequest(3, 4))
    extra_field = encode(known) + b"\xf8\x3f\x07"  # field 127: 7
    assert decode(extra_field) == known
    other_body = pb.Envelope(source=1).SerializeToString() + b"\xa2\x06\x00"  # field 100, empty
    assert split(join([other_body, extra_field])) == [known]
    with pytest.raises(FrameError, match="unknown kind of envelope"):
        decode(other_body)


@given(st.lists(envelopes, max_size=3), st.data())
def test_what_is_decoded_without_protobuf_is_what_protobuf_decodes(
    several: list[Envelope], data: st.DataObject
) -> None:
    """Bytes that were changed on the way too: the same envelopes, or an error of both."""
    batch = bytearray(join(map(encode, several)))
    for _ in range(data.draw(st.integers(0, 3)) if batch else 0):
        batch[data.draw(st.integers(0, len(batch) - 1))] = data.draw(st.integers(0, 255))
    try:
        messages = pb.Dialler.FromString(bytes(batch)).envelopes
        expected = [envelope for envelope in map(peer_codec._envelope, messages) if envelope is not None]
    except (FrameError, DecodeError):
        with pytest.raises(FrameError):
            split(bytes(batch))
    else:
        assert split(bytes(batch)) == expected


@given(
    st.builds(Envelope, numbers, numbers, numbers, numbers, st.builds(Data, numbers, numbers, st.binary(max_size=300)))
)
def test_messages_are_encoded_as_protobuf_does(envelope: Envelope) -> None:
    message = pb.Envelope.FromString(encode(envelope))
    assert message.SerializeToString() == encode(envelope)
    assert (message.source, message.incarnation, message.target) == (
        envelope.source,
        envelope.incarnation,
        envelope.target,
    )
