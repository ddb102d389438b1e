"""Membership of an etcd: new members are added as learners, which do not vote, and promoted once they have caught up.

A learner cannot block the others. A member that is added as a voter and does not start would be missing from the
majority.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from starlingmq.net.etcd.etcd_calls import MEMBER_ADD, MEMBER_LIST, MEMBER_PROMOTE, MEMBER_REMOVE, STATUS, EtcdCalls
from starlingmq.net.proto import etcd_pb2 as pb


@dataclass(frozen=True)
class EtcdMember:
    """``name`` and ``client_urls`` are empty until it has started for the first time."""

    id: int
    name: str
    peer_urls: tuple[str, ...]
    client_urls: tuple[str, ...]
    learner: bool


@dataclass(frozen=True)
class EtcdStatus:
    """``leader`` 0: it knows none. ``errors``: alarms, such as an exhausted quota."""

    member: int
    leader: int
    version: str
    learner: bool
    db_size: int
    errors: tuple[str, ...]


async def members(calls: EtcdCalls) -> list[EtcdMember]:
    """Raises EtcdError, as all of these do."""
    return [_member(each) for each in (await calls.ask(MEMBER_LIST, pb.MemberListRequest())).members]


async def add_learner(calls: EtcdCalls, peer_url: str) -> EtcdMember:
    """One at a time; refused (FAILED_PRECONDITION) while there is another learner."""
    request = pb.MemberAddRequest(peer_urls=[peer_url], is_learner=True)
    return _member((await calls.call(MEMBER_ADD, request)).member)


async def promote(calls: EtcdCalls, member: int) -> None:
    """Refused (FAILED_PRECONDITION) until the learner has caught up."""
    await calls.ask(MEMBER_PROMOTE, pb.MemberRequest(id=member))


async def remove(calls: EtcdCalls, member: int) -> None:
    await calls.call(MEMBER_REMOVE, pb.MemberRequest(id=member))


async def status(calls: EtcdCalls, endpoint: str = "") -> EtcdStatus:
    """The status that one member reports about itself."""
    answer = await calls.call(STATUS, pb.StatusRequest(), endpoint)
    return EtcdStatus(
        answer.header.member_id,
        answer.leader,
        answer.version,
        answer.is_learner,
        answer.db_size,
        tuple(answer.errors),
    )


def addresses(found: Sequence[EtcdMember]) -> list[str]:
    """``host:port`` of the members that can be asked."""
    return [url.partition("://")[2] for member in found if not member.learner for url in member.client_urls]


def _member(message: pb.Member) -> EtcdMember:
    return EtcdMember(
        message.id, message.name, tuple(message.peer_urls), tuple(message.client_urls), message.is_learner
    )
