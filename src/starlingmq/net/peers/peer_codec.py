"""Encodes envelopes as protobuf and back (net/proto/peers.proto). Every input that cannot be decoded raises FrameError.

Several envelopes travel in one message. A repeated field is its elements one after the other, each with tag and
length, so a batch is joined from envelopes that are encoded already.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec
from google.protobuf.message import DecodeError

from starlingmq.cluster.links.peer_frames import (
    Allotment,
    Body,
    Data,
    DataAck,
    Envelope,
    GroupPull,
    GroupReport,
    GroupState,
    HandshakeAnswer,
    HandshakeCall,
    HandshakeQuestion,
    HandshakeReply,
    Heartbeat,
    MemberInfo,
    Membership,
    OperatorCall,
    OperatorReply,
    Pull,
    RouteApplied,
    RouteRecord,
    RouteRecords,
    RouteSnapshot,
    ShareFrame,
    SyncRequest,
)
from starlingmq.cluster.routes.record_bytes import RouteRecordError, unpack_records
from starlingmq.net.peers.frequent_codec import (
    encode_ack,
    encode_applied,
    encode_data,
    encode_records,
    encode_share,
    join,
    packed,
    split_usual,
)
from starlingmq.net.proto import peers_pb2 as pb

__all__ = ["BODIES", "FrameError", "decode", "encode", "join", "split"]

_pack = msgspec.msgpack.encode
_questions = msgspec.msgpack.Decoder(tuple[HandshakeQuestion, ...])
_users = msgspec.msgpack.Decoder(tuple[str | None, ...])
_answers = msgspec.msgpack.Decoder(tuple[HandshakeAnswer, ...])


class FrameError(Exception):
    """The bytes are not a frame of any version that this node knows."""


def encode(envelope: Envelope) -> bytes:
    body = envelope.body
    if isinstance(body, Data) and body.waited == 0.0 and not body.kept:
        return encode_data(envelope, body)
    if isinstance(body, DataAck):
        return encode_ack(envelope, body)
    if isinstance(body, ShareFrame):
        return encode_share(envelope, body)
    if isinstance(body, RouteRecords) and not body.history:
        return encode_records(envelope, body)
    if isinstance(body, RouteApplied):
        return encode_applied(envelope, body)
    message = pb.Envelope(
        source=envelope.source,
        incarnation=envelope.incarnation,
        target=envelope.target,
        target_incarnation=envelope.target_incarnation,
        relayed=envelope.relayed,
    )
    name, put, _ = BODIES[type(body)]
    field = getattr(message, name)
    field.SetInParent()
    put(body, field)
    return message.SerializeToString()


def decode(data: bytes) -> Envelope:
    """Raises FrameError, also for a kind of body that only later versions know."""
    try:
        message = pb.Envelope.FromString(data)
    except DecodeError as error:
        raise FrameError(f"an envelope of {len(data)} bytes is malformed") from error
    envelope = _envelope(message)
    if envelope is None:
        raise FrameError("unknown kind of envelope")
    return envelope


def split(data: bytes) -> list[Envelope]:
    """The envelopes of one message, in order, without kinds that only later versions know. Raises FrameError."""
    try:
        envelopes = split_usual(data, _other)
        if envelopes is not None:
            return envelopes
        messages = pb.Dialler.FromString(data).envelopes
    except DecodeError as error:
        raise FrameError(f"a message of {len(data)} bytes is malformed") from error
    except RouteRecordError as error:
        raise FrameError(str(error)) from error
    return [envelope for envelope in map(_envelope, messages) if envelope is not None]


def _other(data: bytes) -> Envelope | None:
    return _envelope(pb.Envelope.FromString(data))


def _envelope(message: pb.Envelope) -> Envelope | None:
    name = message.WhichOneof("body")
    if name is None:
        return None
    body = FROM_MESSAGE[name](getattr(message, name))
    return Envelope(
        message.source, message.incarnation, message.target, message.target_incarnation, body, message.relayed
    )


def _from_heartbeat(beat: Heartbeat) -> pb.Heartbeat:
    return pb.Heartbeat(
        epoch=beat.epoch,
        version=beat.version,
        vector=[pb.Applied(node=node, epoch=at[0], version=at[1]) for node, at in beat.vector.items()],
        heard=beat.heard,
        relayed=beat.relayed,
        connected=sorted(beat.connected),
        serving=beat.serving,
        number=beat.number,
        taken=beat.taken,
        listeners=beat.listeners,
        draining=beat.draining,
        clients=beat.clients,
        retained=beat.retained,
        gone=beat.gone,
        since=beat.since,
        changed=beat.changed,
        membership=pb.Membership(
            revision=beat.membership.revision, members=[_from_member(member) for member in beat.membership.members]
        ),
    )


def _to_heartbeat(message: pb.Heartbeat) -> Heartbeat:
    members = tuple(_to_member(member) for member in message.membership.members)
    return Heartbeat(
        epoch=message.epoch,
        version=message.version,
        vector={applied.node: (applied.epoch, applied.version) for applied in message.vector},
        heard=dict(message.heard),
        relayed=dict(message.relayed),
        connected=frozenset(message.connected),
        serving=message.serving,
        membership=Membership(message.membership.revision, members),
        number=message.number,
        taken=dict(message.taken),
        listeners=tuple(message.listeners),
        draining=message.draining,
        clients=message.clients,
        retained=message.retained,
        gone=dict(message.gone),
        since=message.since,
        changed=tuple(message.changed),
    )


def _from_member(member: MemberInfo) -> pb.MemberInfo:
    return pb.MemberInfo(
        name=member.name,
        number=member.number,
        incarnation=member.incarnation,
        address=member.address,
        version=member.version,
        joining=not member.registered,
        first=member.first,
        since=member.since,
    )


def _to_member(message: pb.MemberInfo) -> MemberInfo:
    return MemberInfo(
        message.name,
        message.number,
        message.incarnation,
        message.address,
        message.version,
        not message.joining,
        message.first,
        message.since,
    )


def _put_route_records(body: RouteRecords, field: pb.RouteRecords) -> None:
    field.epoch = body.epoch
    field.first = body.first
    field.records = packed(body.records)
    for epoch, first in body.history:
        field.history.add(epoch=epoch, first=first)
    field.quiet = body.quiet


def _to_route_records(message: pb.RouteRecords) -> RouteRecords:
    history = tuple((start.epoch, start.first) for start in message.history)
    return RouteRecords(message.epoch, message.first, _to_records(message.records), history, message.quiet)


def _put_snapshot(body: RouteSnapshot, field: pb.RouteSnapshot) -> None:
    field.epoch = body.epoch
    field.version = body.version
    field.chunk = body.chunk
    field.last = body.last
    field.of = body.of
    field.records = packed(body.records)


def _to_snapshot(message: pb.RouteSnapshot) -> RouteSnapshot:
    records = _to_records(message.records)
    return RouteSnapshot(message.epoch, message.version, message.chunk, message.last, records, message.of)


def _to_records(data: bytes) -> tuple[RouteRecord, ...]:
    try:
        return tuple(unpack_records(data))
    except RouteRecordError as error:
        raise FrameError(str(error)) from error


def _to_call(message: pb.HandshakeCall) -> HandshakeCall:
    try:
        users = _users.decode(message.users) if message.users else ()
        return HandshakeCall(message.number, _questions.decode(message.questions), users)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise FrameError(f"a request about handshakes is malformed: {error}") from error


def _to_reply(message: pb.HandshakeReply) -> HandshakeReply:
    try:
        return HandshakeReply(message.number, message.since, _answers.decode(message.answers))
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise FrameError(f"a response about handshakes is malformed: {error}") from error


def _put_data(body: Data, field: pb.Data) -> None:
    """In place: these are nearly all bytes that travel, so they are not copied once more."""
    field.sequence = body.sequence
    field.count = body.count
    field.blob = body.blob
    if body.waited != 0.0:
        field.waited = body.waited
    if body.kept:
        field.kept = True


def _put_pull(body: GroupPull, field: pb.GroupPull) -> None:
    field.number = body.number
    for pull in body.pulls:
        allotments = [
            pb.Allotment(node=each.node, online=each.online, room=each.room, standing=each.standing, limit=each.limit)
            for each in pull.allotments
        ]
        field.pulls.add(key=pull.key, epoch=pull.epoch, allotments=allotments, stands=pull.stands)


def _to_pull(message: pb.GroupPull) -> GroupPull:
    pulls = [
        Pull(
            pull.key,
            pull.epoch,
            tuple(Allotment(each.node, each.online, each.room, each.standing, each.limit) for each in pull.allotments),
            pull.stands,
        )
        for pull in message.pulls
    ]
    return GroupPull(message.number, tuple(pulls))


def _put_report(body: GroupReport, field: pb.GroupReport) -> None:
    field.number = body.number
    for state in body.states:
        field.states.add(
            key=state.key,
            epoch=state.epoch,
            waiting=state.waiting,
            online=state.online,
            room=state.room,
            taken=[pb.Taken(node=node, count=count) for node, count in state.taken],
            wants=state.wants,
            limit=state.limit,
        )


def _to_report(message: pb.GroupReport) -> GroupReport:
    states = [
        GroupState(
            state.key,
            state.epoch,
            state.waiting,
            state.online,
            state.room,
            tuple((each.node, each.count) for each in state.taken),
            state.wants,
            state.limit,
        )
        for state in message.states
    ]
    return GroupReport(message.number, tuple(states))


BODIES: Final[dict[type[Body], tuple[str, Callable[[Any, Any], None], Callable[[Any], Body]]]] = {
    Heartbeat: ("heartbeat", lambda body, field: field.CopyFrom(_from_heartbeat(body)), _to_heartbeat),
    RouteRecords: ("route_records", _put_route_records, _to_route_records),
    RouteApplied: (
        "route_applied",
        lambda body, field: field.CopyFrom(
            pb.RouteApplied(epoch=body.epoch, version=body.version, retained=body.retained)
        ),
        lambda message: RouteApplied(message.epoch, message.version, message.retained),
    ),
    SyncRequest: (
        "sync_request",
        lambda body, field: field.CopyFrom(pb.SyncRequest(epoch=body.epoch, version=body.version, of=body.of)),
        lambda message: SyncRequest(message.epoch, message.version, message.of),
    ),
    RouteSnapshot: ("route_snapshot", _put_snapshot, _to_snapshot),
    Data: (
        "data",
        _put_data,
        lambda message: Data(message.sequence, message.count, message.blob, message.waited, message.kept),
    ),
    DataAck: (
        "data_ack",
        lambda body, field: field.CopyFrom(pb.DataAck(sequence=body.sequence, room=body.room)),
        lambda message: DataAck(message.sequence, message.room),
    ),
    HandshakeCall: (
        "handshake_call",
        lambda body, field: field.CopyFrom(
            pb.HandshakeCall(number=body.number, questions=_pack(body.questions), users=_pack(body.users))
        ),
        _to_call,
    ),
    HandshakeReply: (
        "handshake_reply",
        lambda body, field: field.CopyFrom(
            pb.HandshakeReply(number=body.number, since=body.since, answers=_pack(body.answers))
        ),
        _to_reply,
    ),
    GroupPull: ("group_pull", _put_pull, _to_pull),
    GroupReport: ("group_report", _put_report, _to_report),
    OperatorCall: (
        "operator_call",
        lambda body, field: field.CopyFrom(pb.OperatorCall(number=body.number, question=body.question)),
        lambda message: OperatorCall(message.number, message.question),
    ),
    OperatorReply: (
        "operator_reply",
        lambda body, field: field.CopyFrom(pb.OperatorReply(number=body.number, answer=body.answer)),
        lambda message: OperatorReply(message.number, message.answer),
    ),
    ShareFrame: (
        "share_frame",
        lambda body, field: field.CopyFrom(
            pb.ShareFrame(
                version=body.version,
                sequence=body.sequence,
                taken=body.taken,
                messages=body.messages,
                table=body.table,
            )
        ),
        lambda message: ShareFrame(message.version, message.sequence, message.taken, message.messages, message.table),
    ),
}
"""By kind of body: its field in Envelope, its encoder, and its decoder."""

FROM_MESSAGE: Final = {name: read for name, _, read in BODIES.values()}
