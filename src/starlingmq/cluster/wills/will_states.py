"""The states of the record of a will at the leader of its share. Every transition is defined here, in ``WILL_TABLE``.

::

    NONE    --its client's CONNECT is claimed-> ARMED    in the step of the claim, and at the deputy before CONNACK
    ARMED   --cancelled by its client---------> NONE     DISCONNECT, or the client is back at this node in time
    ARMED   --due, its node asks--------------> FIRING   its node may publish it, for ``takeover_timeout``
    FIRING  --published and stored------------> NONE
    ARMED   --its client is elsewhere, in time> SETTLED  and not published
    ARMED   --its client is elsewhere, and due> SETTLED  and a copy, which is ARMED, for the client's new node
    ARMED   --its node is gone, and due-------> SETTLED  and a copy, which is ARMED, for the leader of the share
    FIRING  --its node is gone----------------> SETTLED  the will is lost: it may have been published
    SETTLED --its node has seen it------------> NONE

Each event is that of one actor: the leader with a claim, the node of the record, the node where the client is back
(``will_settlement``), or the leader that misses the node (``lost_wills``). It takes the record as the actor knows it,
and the leader makes the change only if the record is unchanged. So of two actors one succeeds; the other looks again.

Laws:

- Only the node of a record publishes its will, and only while the record lets it: a will FIRING, a copy ARMED. A will
  that is FIRING has no content in its record, so no other node could publish it.
- A will that is SETTLED is published by no node but its taker. A copy is not settled: it is published, or deleted.
- A claim does not settle the will itself. The CONNECT may still be given up, and then the will stays; or DISCONNECT,
  which the former node has and the leader has not, has cancelled it. Both are known once that node has answered.
- A copy that is FIRING is published, and etcd has not yet what it retains: no CONNECT elsewhere waits for that.
- Whatever its state, a copy that is not waited for any more is deleted, and so is a record of a node that is no member.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from starlingmq.cluster.wills.will_records import ARMED, FIRING, SETTLED, RegisteredWill
from starlingmq.core.structures.state_table import StateTable, goes, ignores


class WillState(Enum):
    NONE = "there is no record"
    ARMED = "it may become due"
    FIRING = "its node publishes it"
    SETTLED = "another node has taken it, or its client is back"


class WillEvent(Enum):
    CLAIMED = "the leader grants the claim of its CONNECT"
    GIVEN_UP = "that CONNECT is given up"
    WANTED = "its node has a will of the client, in time or left to another node, or takes its copy again"
    FIRES = "it is due, and its node publishes it"
    OVER = "its node has no will of the client"
    LATER = "the client is back, and has been there since"
    CANCELLED = "the client is back in time, or the node of the will says that nothing is due"
    DUE = "the client is back, and it is due"
    EXPECTED = "the client is back, and the node of the will is to write or to answer soon"
    UNHEARD = "the client is back, and the node of the will is not heard, or has not answered in time"
    LOST = "its node is gone, and it is due"


class WillAction(Enum):
    WRITE = "write what the node wants"
    DELETE = "delete the record"
    FORGET = "forget the name"
    SETTLE = "write that it is settled"
    TAKE = "write that it is settled, and a copy for this node"
    WAIT = "read the record again later"
    CONCLUDE = "let the CONNECT go on"


_S = WillState
_E = WillEvent
_A = WillAction

WILL_TABLE: Final[StateTable[WillState, WillEvent, WillAction]] = StateTable(
    "will",
    [
        goes(_S.NONE, _E.CLAIMED, _S.ARMED, _A.WRITE),
        goes(_S.ARMED, _E.CLAIMED, _S.ARMED, _A.WRITE),  # made again: an earlier will stays, and comes first
        ignores(_S.FIRING, _E.CLAIMED, "the earlier will comes first; its node writes the new one then"),
        ignores(_S.SETTLED, _E.CLAIMED, "its node has not seen it; it writes the new one then"),
        ignores(_S.NONE, _E.GIVEN_UP, "the claim has not brought the will"),
        goes(_S.ARMED, _E.GIVEN_UP, _S.NONE, _A.DELETE),
        ignores(_S.FIRING, _E.GIVEN_UP, "that is an earlier will"),
        ignores(_S.SETTLED, _E.GIVEN_UP, "its node has not seen it, and deletes it then"),
        *[goes(each, _E.WANTED, _S.ARMED, _A.WRITE) for each in _S],  # of SETTLED and FIRING: a later will
        *[goes(each, _E.FIRES, _S.FIRING, _A.WRITE) for each in _S],  # of SETTLED and FIRING: a later one, or again
        goes(_S.NONE, _E.OVER, _S.NONE, _A.FORGET),
        *[goes(each, _E.OVER, _S.NONE, _A.DELETE) for each in (_S.ARMED, _S.FIRING, _S.SETTLED)],
        ignores(_S.NONE, _E.LATER, "there is nothing later"),
        *[goes(each, _E.LATER, each, _A.CONCLUDE) for each in (_S.ARMED, _S.FIRING, _S.SETTLED)],
        goes(_S.ARMED, _E.CANCELLED, _S.SETTLED, _A.SETTLE),
        goes(_S.ARMED, _E.DUE, _S.SETTLED, _A.TAKE),
        # without a record it was published, or its node has seen that it is settled
        *[goes(each, event, each, _A.CONCLUDE) for each in (_S.NONE, _S.SETTLED) for event in (_E.CANCELLED, _E.DUE)],
        *[ignores(_S.FIRING, event, "its node is waited for, or not heard") for event in (_E.CANCELLED, _E.DUE)],
        *[goes(each, _E.EXPECTED, each, _A.WAIT) for each in _S],
        goes(_S.NONE, _E.UNHEARD, _S.SETTLED, _A.SETTLE),  # the node may have a will that is not registered
        ignores(_S.ARMED, _E.UNHEARD, "the record says whether it is due"),
        goes(_S.FIRING, _E.UNHEARD, _S.SETTLED, _A.SETTLE),  # the will is lost
        goes(_S.SETTLED, _E.UNHEARD, _S.SETTLED, _A.SETTLE),  # a later will that is not registered, too
        ignores(_S.NONE, _E.LOST, "there is no will"),
        goes(_S.ARMED, _E.LOST, _S.SETTLED, _A.TAKE),
        ignores(_S.FIRING, _E.LOST, "its node may have published it"),
        ignores(_S.SETTLED, _E.LOST, "it was taken, or its client was back"),
    ],
)

_STATES: Final = {ARMED: WillState.ARMED, FIRING: WillState.FIRING, SETTLED: WillState.SETTLED}


def state_of(value: RegisteredWill | None) -> WillState:
    """A state of a later version of the software is left alone, like FIRING."""
    return WillState.NONE if value is None else _STATES.get(value.state, WillState.FIRING)
