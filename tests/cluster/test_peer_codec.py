"""Envelopes as bytes: what goes in comes out, alone and in batches, and nothing else gets through."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cluster.frame_strategies import envelopes

from starlingmq.cluster.links.control_frames import Control, RouteSnapshot, SyncRequest
from starlingmq.cluster.links.peer_frames import Data, Envelope
from starlingmq.cluster.links.record_bytes import PackedRecords
from starlingmq.net.peers.peer_codec import CONTROL, RELAYED, ROUTE_APPLIED, TAGS, FrameError, encode, join, split

HEAD = bytes((CONTROL, 1, 1, 2, 0))
KNOWN = Envelope(1, 1, 2, 0, SyncRequest(3, 4))


def control(values: object) -> bytes:
    """A message of one envelope with a body of these values."""
    return join([HEAD + msgspec.msgpack.encode(values)])


@given(st.lists(envelopes, max_size=5))
def test_a_batch_comes_out_as_it_went_in(several: list[Envelope]) -> None:
    assert split(join([encode(each) for each in several])) == several


def test_each_control_frame_has_a_tag_of_its_own() -> None:
    assert len(TAGS) == len(Control.__args__)


@given(st.binary(max_size=200))
def test_any_bytes_are_envelopes_or_one_clear_error(data: bytes) -> None:
    try:
        split(data)
    except FrameError as error:
        assert str(error).isprintable() and str(error)


@given(st.lists(envelopes, min_size=1, max_size=3), st.data())
def test_damaged_bytes_are_envelopes_or_one_clear_error(several: list[Envelope], data: st.DataObject) -> None:
    batch = bytearray(join([encode(each) for each in several]))
    for _ in range(data.draw(st.integers(1, 3))):
        batch[data.draw(st.integers(0, len(batch) - 1))] = data.draw(st.integers(0, 255))
    try:
        split(bytes(batch))
    except FrameError as error:
        assert str(error).isprintable() and str(error)


@given(envelopes, st.data())
def test_a_truncated_frame_is_an_error(envelope: Envelope, data: st.DataObject) -> None:
    whole = join([encode(envelope)])
    cut = data.draw(st.integers(1, len(whole) - 1))
    with pytest.raises(FrameError, match=r"^a message of \d+ bytes is malformed: "):
        split(whole[:cut])


@pytest.mark.parametrize("records", [b"\x01", "text", 7, None])
def test_malformed_route_records_are_an_error(records: object) -> None:
    snapshot = msgspec.msgpack.encode(RouteSnapshot(1, 1, 0, True, PackedRecords(())), enc_hook=PackedRecords.packed)
    values = msgspec.msgpack.decode(snapshot)
    assert values[5] == b""
    values[5] = records
    with pytest.raises(FrameError):
        split(control(values))


def test_numbers_below_zero_and_above_63_bits_are_errors() -> None:
    for data in (control([TAG, -1, 4]), join([b"\0" + b"\xff" * 8 + b"\x7f" * 20]), join([b"\0" + b"\xff" * 20])):
        with pytest.raises(FrameError):
            split(data)


def test_a_large_blob_goes_through() -> None:
    envelope = Envelope(1, 2, 3, 4, Data(5, 6, bytes(3_000_000)))
    assert split(join([encode(envelope)] * 2)) == [envelope, envelope]


TAG = SyncRequest.__struct_config__.tag


def test_additions_of_later_versions_are_ignored() -> None:
    wider = control([TAG, 3, 4, 0, "added"])
    other_kind = join([bytes((ROUTE_APPLIED + 1, 1, 1, 2, 0)) + b"unknown"])
    other_tag = control([max(TAGS) + 1, "unknown"])
    assert split(other_kind + wider + other_tag + join([encode(KNOWN)])) == [KNOWN, KNOWN]


def test_an_envelope_says_whether_it_was_relayed() -> None:
    assert encode(KNOWN.passed_on())[0] == encode(KNOWN)[0] | RELAYED
    assert split(join([encode(KNOWN.passed_on())])) == [KNOWN.passed_on()] != [KNOWN]


@pytest.mark.parametrize("values", [[], ["text"], 7, None, [TAG], [TAG, "text", 4], {}])
def test_a_control_frame_without_its_tag_or_fields_is_an_error(values: object) -> None:
    with pytest.raises(FrameError):
        split(control(values))


@pytest.mark.parametrize("data", [b"\x91" * 100_000, b"\x81" * 100_000])
def test_deep_nesting_is_an_error(data: bytes) -> None:
    with pytest.raises(FrameError):
        split(join([HEAD + data]))
