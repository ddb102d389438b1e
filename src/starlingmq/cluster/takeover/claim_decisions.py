"""Decisions on claims of client ids: one at each end, each with its actions in their order.

``REQUEST_TABLE``: another node owns the client id, and requests the session (``Takeover``) from this one.
``CLAIM_TABLE``: a claim of this node is answered.

Invariant: of the conditions below, the first that holds decides, in the order of the enum. Deciding changes nothing;
the actions do.
"""

from __future__ import annotations

from enum import Enum
from typing import Final


class RequestDecision(Enum):
    NO_MEMBER = "the node is not a member"
    REPEATED = "the session is already being handed over to it"
    RESERVED = "the session is reserved for another user (auth.session_owner: refuse)"
    RETURNED = "the session was offered, and its client has returned here"
    OLDER = "this node, or a node that gets the session from here, has a higher epoch"
    DISCARDED = "clean start, or a session of another user"
    INCOMPLETE = "the session is still moving to this node"
    LINK_FULL = "the inflight windows of other sessions wait for the link to the node"
    AVAILABLE = "nothing to wait for"


class RequestAction(Enum):
    REPEAT = "send Head again, and Whole if it was sent"
    NOTE_EPOCH = "note the epoch: this node's own outstanding claim may be older"
    REFUSE = "answer Head: overtaken"
    REFUSE_CONNECT = "refuse a CONNECT that waits here since before"
    DISCARD = "stop waiting for parts that have not arrived"
    DEFER = "answer when the session has arrived"
    LINE_UP = "answer when the link has room"
    END = "end the session, and hand over what stays owed"
    HAND_OVER = "hand the session over"


class ClaimDecision(Enum):
    OVERTAKEN = "a node with a higher epoch has requested the session"
    UNUSED = "no CONNECT waits, and no state of the client id is here"
    CLEAN_START_GONE = "the claim was written as a clean start, and that CONNECT is gone"
    OLDER = "no CONNECT waits, and another node has a later session"
    INCOMPLETE = "the old session here has not arrived completely"
    OFFER_VOID = "claimed because of an offer that no longer holds"
    OWNED = "this node owns the client id"


class ClaimAction(Enum):
    RELEASE = "delete this node's owner key"
    REFUSE_CONNECT = "refuse the waiting CONNECT"
    CLAIM_AGAIN = "claim again, without the clean start"
    POSTPONE = "decide again when the session has arrived"
    TURN_DOWN = "refuse a deferred request with a lower epoch"
    DROP_OFFER = "forget the offer"
    TAKE_OFFER = "count the offer, and request the session from the node that made it"
    PREPARE = "cancel or publish the will of the client's session here"
    REQUEST = "request the session from all nodes with an owner key"


_R = RequestAction
_C = ClaimAction

REQUEST_TABLE: Final[dict[RequestDecision, tuple[RequestAction, ...]]] = {
    RequestDecision.NO_MEMBER: (),
    RequestDecision.REPEATED: (_R.REPEAT,),
    RequestDecision.RESERVED: (_R.NOTE_EPOCH, _R.REFUSE),
    RequestDecision.RETURNED: (_R.NOTE_EPOCH, _R.REFUSE),
    RequestDecision.OLDER: (_R.NOTE_EPOCH, _R.REFUSE),
    RequestDecision.DISCARDED: (_R.NOTE_EPOCH, _R.REFUSE_CONNECT, _R.DISCARD, _R.END),
    RequestDecision.INCOMPLETE: (_R.NOTE_EPOCH, _R.REFUSE_CONNECT, _R.DEFER),
    RequestDecision.LINK_FULL: (_R.NOTE_EPOCH, _R.REFUSE_CONNECT, _R.DEFER, _R.LINE_UP),
    RequestDecision.AVAILABLE: (_R.NOTE_EPOCH, _R.REFUSE_CONNECT, _R.HAND_OVER),
}

CLAIM_TABLE: Final[dict[ClaimDecision, tuple[ClaimAction, ...]]] = {
    ClaimDecision.OVERTAKEN: (_C.RELEASE, _C.REFUSE_CONNECT),
    ClaimDecision.UNUSED: (_C.RELEASE,),
    ClaimDecision.CLEAN_START_GONE: (_C.CLAIM_AGAIN,),
    ClaimDecision.OLDER: (),
    ClaimDecision.INCOMPLETE: (_C.POSTPONE,),
    ClaimDecision.OFFER_VOID: (_C.TURN_DOWN, _C.DROP_OFFER, _C.RELEASE),
    ClaimDecision.OWNED: (_C.TURN_DOWN, _C.TAKE_OFFER, _C.PREPARE, _C.REQUEST),
}
