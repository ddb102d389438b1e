"""Messages between nodes about owners and wills, as values and as bytes. ``share_leader`` has their order.

::

    Claim, Release, Read   from a node to the leader of the share          OwnerAnswer   back to that node; to a Claim,
                           from the deputy
    Copy, KeyChanged       from the leader to the deputy                   Ask           from a new leader to all
    Statement              from each node to a new leader                  Settled       from a new leader to all
    Earlier                from the leader to a node that has restarted
    WillChange, WillRead   from a node to the leader of the share          WillAnswer    back to that node
    WillsOf                from a node to the leader of the shares         WillsFound    back to that node
    Disarm                 from a node to the leader of the share, behind a Claim whose CONNECT is given up
    WillHint               from a node to the deputy, if the leader is slow to answer its WillChange
    WillsKept              from the leader to the deputy                   WillNews      from the leader to their node
    Hasten                 from the leader to the deputy, if an answer waits for its acknowledgement
"""

from __future__ import annotations

from typing import Any

import msgspec

from starlingmq.cluster.shares.share_table import share_of
from starlingmq.cluster.takeover.owner_store import OwnerKey

Entry = tuple[str, OwnerKey]  # client id, and one of its keys
Stated = tuple[str, int, int]  # client id, epoch and floor of what a node has
WillKey = tuple[bytes, int, bytes]  # key of a will (``will_records``), its revision, its value
Served = tuple[str, int, int]  # client id, node, and the newest epoch in which the node has served the client
WillWrite = tuple[bytes, bytes | None]  # such a key and its new value; None: it is deleted


class Claim(msgspec.Struct, array_like=True, tag=1, frozen=True):
    """``newest``: the newest epoch that the node knows. ``will``: the record of the will that the claiming CONNECT
    leaves, without its epoch; empty: none."""

    ticket: int
    client_id: str
    incarnation: int
    floor: int
    newest: int
    will: bytes = b""


class Release(msgspec.Struct, array_like=True, tag=2, frozen=True):
    ticket: int
    client_id: str
    node: int
    epoch: int


class Read(msgspec.Struct, array_like=True, tag=3, frozen=True):
    ticket: int
    client_id: str


class OwnerAnswer(msgspec.Struct, array_like=True, tag=4, frozen=True):
    """``epoch``: of the claim, or the highest of the share. ``keys``: before the claim; of a release: the later key
    that it has not deleted. ``armed``: the will of the claim is registered, in the revision ``epoch``. ``wills``: the
    other wills of its client id."""

    ticket: int
    epoch: int
    keys: tuple[OwnerKey, ...]
    armed: bool = False
    wills: tuple[WillKey, ...] = ()


class KeyChanged(msgspec.Struct, array_like=True, tag=5, frozen=True):
    """A key is written; its epoch 0: deleted. ``ticket``: of the claim that has written it, which the deputy answers
    with ``found`` once it has the key; 0: there is none. ``will``: the record of the will that is written with it, in
    the revision of its epoch; empty: none."""

    share: int
    client_id: str
    key: OwnerKey
    ticket: int = 0
    found: tuple[OwnerKey, ...] = ()
    will: bytes = b""


class Copy(msgspec.Struct, array_like=True, tag=6, frozen=True):
    """A whole book: ``entries``, ``wills`` and what ``ServedClients`` has."""

    share: int
    since: int
    before: int
    counter: int
    collected: int
    unknown: tuple[int, ...]
    entries: tuple[Entry, ...]
    wills: tuple[WillKey, ...] = ()
    served: tuple[Served, ...] = ()


class Ask(msgspec.Struct, array_like=True, tag=7, frozen=True):
    shares: tuple[int, ...]


class Statement(msgspec.Struct, array_like=True, tag=8, frozen=True):
    """``own``: everything that the node has of the share. ``copy``: its whole book of the
    share, if it has one. ``void``: (since, before) of pairs with this node in which it never had a whole book."""

    share: int
    own: tuple[Stated, ...]
    copy: Copy | None
    void: tuple[tuple[int, int], ...]
    wills: tuple[WillKey, ...] = ()  # the keys of the node's own wills, as far as it knows
    served: tuple[tuple[str, int], ...] = ()  # client id, and the newest epoch in which the node has served the client


class Settled(msgspec.Struct, array_like=True, tag=9, frozen=True):
    """The leader and the deputy of these shares have whole books: older ones are not needed."""

    shares: tuple[int, ...]


class Earlier(msgspec.Struct, array_like=True, tag=10, frozen=True):
    """Keys that earlier incarnations of the node have written: client id, epoch."""

    keys: tuple[tuple[str, int], ...]


class WillChange(msgspec.Struct, array_like=True, tag=11, frozen=True):
    """Writes keys of wills of one client id if ``key`` has that revision (0: if it does not exist)."""

    ticket: int
    client_id: str
    key: bytes
    revision: int
    writes: tuple[WillWrite, ...]


class WillRead(msgspec.Struct, array_like=True, tag=12, frozen=True):
    ticket: int
    client_id: str


class WillsOf(msgspec.Struct, array_like=True, tag=13, frozen=True):
    """Reads all wills of the sender in these shares. ``reading``: a number of its choice."""

    reading: int
    shares: tuple[int, ...]


class WillAnswer(msgspec.Struct, array_like=True, tag=14, frozen=True):
    """``done``: the change was made, and that is its revision. ``wills``: what was read; if a change does not match,
    the keys of the client id."""

    ticket: int
    done: bool
    revision: int
    wills: tuple[WillKey, ...]


class WillsKept(msgspec.Struct, array_like=True, tag=15, frozen=True):
    share: int
    revision: int
    writes: tuple[WillWrite, ...]


class WillNews(msgspec.Struct, array_like=True, tag=16, frozen=True):
    """Another node has written these keys of this node."""

    revision: int
    writes: tuple[WillWrite, ...]


class WillHint(msgspec.Struct, array_like=True, tag=17, frozen=True):
    """The node has asked the leader for this change of its own key, and has no answer. If the deputy becomes the
    leader, the change is made even if the node has died meanwhile."""

    change: WillChange


class WillsFound(msgspec.Struct, array_like=True, tag=19, frozen=True):
    """All wills of the node in these shares, which are some of those it has asked for, or all."""

    reading: int
    shares: tuple[int, ...]
    wills: tuple[WillKey, ...]


class Disarm(msgspec.Struct, array_like=True, tag=20, frozen=True):
    """The CONNECT of a claim that the node has made before is given up: the leader deletes the record of the sender's
    will with that id. There is no answer."""

    client_id: str
    will: int


class Hasten(msgspec.Struct, array_like=True, tag=18, frozen=True):
    """The sender waits until the other node has taken everything before this."""


class ShareMessageError(ValueError):
    """The bytes are not messages of this version."""


Asked = Claim | Release | Read | WillChange | WillRead  # each is answered
Request = Asked | Disarm
Answer = OwnerAnswer | WillAnswer | WillsFound | WillNews
Message = (
    Request | WillsOf | Answer | KeyChanged | WillsKept | WillHint | Copy | Ask | Statement | Settled | Earlier | Hasten
)

_encoder = msgspec.msgpack.Encoder()
_decoder: Any = msgspec.msgpack.Decoder(list[Message])


def share_asked(message: Request) -> int:
    """The share that a request is about."""
    return share_of(message.client_id)


def encode(message: Message) -> bytes:
    return _encoder.encode(message)


def pack(messages: list[bytes]) -> bytes:
    return _encoder.encode([msgspec.Raw(each) for each in messages])


def unpack(payload: bytes) -> list[Message]:
    try:
        messages: list[Message] = _decoder.decode(payload)
    except msgspec.MsgspecError as error:
        raise ShareMessageError(f"malformed message about owners: {error}") from None
    return messages
