"""The states of a session that moves from this node, the takeover source. Every transition is defined here.

In ``OUTBOUND_TABLE``::

    WINDOW --window empty-----------> QUEUE      the target has the inflight window: it can answer the CONNECT
    QUEUE  --complete---------------> GONE       the queue is empty, and the cut markers of all members have arrived
    any    --session ended----------> GONE       nothing of it has to be handed over
    any    --target gone------------> HERE       the client has no newer session: this is its session, as before
    any    --target gone, owed------> OWED       the client has a newer session: this one is handed over to this node

Invariants: a message leaves the session in the turn whose commit stores that it was sent; the target gets the whole
inflight window before any other message; the session is gone only once no message can reach it any more.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from starlingmq.core.structures.state_table import StateTable, goes


class OutboundState(Enum):
    WINDOW = "hands over its window"
    QUEUE = "hands over its queue"
    GONE = "gone"
    HERE = "here as before"
    OWED = "owed to a newer session"


class OutboundEvent(Enum):
    MESSAGES = "messages"
    WINDOW_EMPTY = "window empty"
    PASSED = "earlier messages of a node complete"
    COMPLETE = "complete"
    ENDED = "session ended"
    TARGET_RESTARTED = "target restarted"
    TARGET_GONE = "target gone, no newer session"
    TARGET_GONE_OWED = "target gone, newer session"


class OutboundAction(Enum):
    SEND_PARTS = "send Parts"
    SEND_WHOLE = "send Whole"
    SEND_PASSED = "send Passed with the nodes"
    SEND_DONE = "send Passed with the nodes, done"
    ASK = "send Passed without nodes: a target that lost the session answers Unknown"
    REMOVE = "remove the migration and its facts"
    END = "end the session"
    KEEP = "give the session its own name back"
    OWE = "hand it over to this node"


_S = OutboundState
_E = OutboundEvent
_A = OutboundAction

OUTBOUND_TABLE: Final[StateTable[OutboundState, OutboundEvent, OutboundAction]] = StateTable(
    "outbound session",
    [
        goes(_S.WINDOW, _E.MESSAGES, _S.WINDOW, _A.SEND_PARTS),
        goes(_S.WINDOW, _E.WINDOW_EMPTY, _S.QUEUE, _A.SEND_WHOLE),
        goes(_S.WINDOW, _E.ENDED, _S.GONE, _A.REMOVE),
        goes(_S.WINDOW, _E.TARGET_RESTARTED, _S.WINDOW, _A.ASK),
        goes(_S.WINDOW, _E.TARGET_GONE, _S.HERE, _A.REMOVE, _A.KEEP),
        goes(_S.WINDOW, _E.TARGET_GONE_OWED, _S.OWED, _A.REMOVE, _A.OWE),
        goes(_S.QUEUE, _E.MESSAGES, _S.QUEUE, _A.SEND_PARTS),
        goes(_S.QUEUE, _E.PASSED, _S.QUEUE, _A.SEND_PASSED),
        goes(_S.QUEUE, _E.COMPLETE, _S.GONE, _A.SEND_DONE, _A.END, _A.REMOVE),
        goes(_S.QUEUE, _E.ENDED, _S.GONE, _A.REMOVE),
        goes(_S.QUEUE, _E.TARGET_RESTARTED, _S.QUEUE, _A.ASK),
        goes(_S.QUEUE, _E.TARGET_GONE, _S.HERE, _A.REMOVE, _A.KEEP),
        goes(_S.QUEUE, _E.TARGET_GONE_OWED, _S.OWED, _A.REMOVE, _A.OWE),
    ],
)
