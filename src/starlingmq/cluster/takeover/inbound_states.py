"""The states of a session that moves to this node, the takeover target. Every transition is defined here.

Each source (a node that may have the session), in ``SOURCE_TABLE``::

    ASKED   --Head------------------> HANDING  it has the session, or only owes messages
    HANDING --Whole-----------------> HANDING  and ``whole``: its inflight window is complete; its queue follows
    any     --Passed, done----------> GONE     it has no state left
    any     --Head: nothing---------> GONE     it has no state, and never will
    any     --Head: overtaken-------> GONE     it knows a higher epoch, or reserves the session for its user
    any     --not a member----------> GONE
    any     --not connected---------> the same state, but ``late``: nothing waits for this source
    ASKED or HANDING --silent-------> the same state: it is asked again, unless it is ``whole``

The session as a whole, in ``INBOUND_TABLE``::

    WAITING   --wills to settle------> SETTLING   everything that the CONNECT needs from the sources has arrived
    SETTLING  --a source is awaited--> WAITING    a late source has turned out to have the session
    WAITING or SETTLING --ready------> OPEN       the client gets its session
    WAITING or SETTLING --called off-> ABANDONED  a later owner discards the session: this node does not need it
    ABANDONED --CONNECT--------------> WAITING    a client of this node claims the client id again
    OPEN or ABANDONED --complete-----> FINISHED   no source has state left, and all cut markers have arrived

A session reset that the client has noticed, in ``RESET_TABLE``::

    NONE    --client has noticed-----> PENDING    its new subscriptions wait for the cut markers of the connected nodes
    PENDING --cut markers------------> NONE       its earlier subscriptions are removed, its SUBSCRIBE is processed
    PENDING --late-------------------> PENDING    a marker is late: a client whose SUBSCRIBE waits is to come again

Invariants:

- The client gets the session with the highest epoch of all that are handed over; the other sources only owe messages.
- The client is told session present 1 only if no node can have a later session.
- Nothing waits for a node that is not connected. A connected node is waited for, however slow it is.
- The source has removed the messages that it has handed over, so all that arrive here are kept: also those of a source
  whose description has not arrived.
- A connected source whose answer is missing is asked again, ever more seldom: no lost frame makes a session wait for
  ever.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from starlingmq.core.structures.state_table import StateTable, goes, ignores


class SourceState(Enum):
    ASKED = "asked"
    HANDING = "hands over"
    GONE = "gone"


class SourceEvent(Enum):
    HEAD = "Head"
    NOTHING = "Head: nothing"
    OVERTAKEN = "Head: overtaken"
    PARTS = "Parts"
    WHOLE = "Whole"
    PASSED = "Passed"
    DONE = "Passed, done"
    SILENT = "silent"  # it is connected, and its answer or its window has been missing for a while
    UNREACHABLE = "not connected"
    REACHABLE = "connected again"  # and no client has had the session
    REMOVED = "not a member"
    DROPPED = "dropped at this node"  # the source is this node, which ends its orphaned session


class SourceAction(Enum):
    LEARN = "note the filters of former owners"
    ADOPT = "take its session, or what it owes"
    PUT = "put its messages into the session"
    KEEP = "keep its messages until it has described the session"
    PUT_KEPT = "put its kept messages into the session"
    NOTE_PASSED = "note whose messages from before their cut markers are complete"
    ASK = "ask it again"
    NOTE_LATE = "wait for it no longer"
    NOTE_REACHABLE = "wait for it again"
    RELEASE = "have its owner key deleted"
    YIELD = "refuse the CONNECT, or end the session of another user"
    DELIVER = "deliver what waited for this"
    STORE = "look at the session in this turn, and store it"
    NOTE_WHOLE = "note that its window is complete; store the session if it is this source's"


class InboundState(Enum):
    WAITING = "waiting for sources"
    SETTLING = "waiting for wills"
    OPEN = "open"
    ABANDONED = "abandoned"
    FINISHED = "finished"


class InboundEvent(Enum):
    AWAITED = "a source is awaited"
    UNSETTLED = "wills left to settle"
    READY = "ready"
    REACHABLE = "a source that nothing waited for is connected again"
    CONNECT = "CONNECT claims again"
    CALLED_OFF = "called off by a later owner"
    COMPLETE = "complete"


class InboundAction(Enum):
    WATCH_WILLS = "look at the wills in each turn"
    UNWATCH_WILLS = "look at the wills no longer"
    EXPECT_WILLS = "settle the wills of all sources"
    STORE = "look at the session in this turn, and store it"
    GO_ON = "let the client have its session"
    FINISH = "forget it"


class ResetState(Enum):
    NONE = "no reset"
    PENDING = "reset waits for cut markers"


class ResetEvent(Enum):
    NOTICED = "the client has noticed"
    DUE = "cut markers"
    LATE = "a cut marker has been missing for long"


class ResetAction(Enum):
    WATCH = "look at it whenever a node connects or disconnects, and when a cut marker is late"
    SEND_AWAY = "close a connection whose SUBSCRIBE waits, as busy"
    SUBSCRIBE = "remove the earlier subscriptions, process the SUBSCRIBE"


_S = SourceState
_E = SourceEvent
_A = SourceAction

SOURCE_TABLE: Final[StateTable[SourceState, SourceEvent, SourceAction]] = StateTable(
    "source of an inbound session",
    [
        goes(_S.ASKED, _E.HEAD, _S.HANDING, _A.LEARN, _A.STORE, _A.ADOPT, _A.PUT_KEPT),
        goes(_S.HANDING, _E.HEAD, _S.HANDING, _A.LEARN, _A.STORE, _A.DELIVER),
        ignores(_S.GONE, _E.HEAD, "it has answered before: its key is being deleted"),
        goes(_S.ASKED, _E.NOTHING, _S.GONE, _A.STORE, _A.RELEASE, _A.PUT_KEPT, _A.DELIVER),
        goes(_S.HANDING, _E.NOTHING, _S.GONE, _A.STORE, _A.RELEASE, _A.DELIVER),
        ignores(_S.GONE, _E.NOTHING, "it was asked twice"),
        goes(_S.ASKED, _E.OVERTAKEN, _S.GONE, _A.STORE, _A.YIELD, _A.PUT_KEPT, _A.DELIVER),
        goes(_S.HANDING, _E.OVERTAKEN, _S.GONE, _A.STORE, _A.YIELD, _A.DELIVER),
        ignores(_S.GONE, _E.OVERTAKEN, "it was asked twice"),
        # its description was lost: it is asked for it again
        goes(_S.ASKED, _E.PARTS, _S.ASKED, _A.KEEP),
        goes(_S.HANDING, _E.PARTS, _S.HANDING, _A.PUT),
        # it was asked twice, and has received messages since: they are accepted
        goes(_S.GONE, _E.PARTS, _S.GONE, _A.PUT),
        ignores(_S.ASKED, _E.WHOLE, "its description was lost, and it says so again with the description"),
        goes(_S.HANDING, _E.WHOLE, _S.HANDING, _A.NOTE_WHOLE),
        ignores(_S.GONE, _E.WHOLE, "nothing waits for its window"),
        goes(_S.ASKED, _E.PASSED, _S.ASKED, _A.NOTE_PASSED, _A.DELIVER),
        goes(_S.HANDING, _E.PASSED, _S.HANDING, _A.NOTE_PASSED, _A.DELIVER),
        ignores(_S.GONE, _E.PASSED, "nothing waits for its messages"),
        goes(_S.HANDING, _E.DONE, _S.GONE, _A.STORE, _A.RELEASE, _A.DELIVER),
        goes(_S.GONE, _E.DONE, _S.GONE, _A.STORE, _A.RELEASE, _A.DELIVER),
        goes(_S.ASKED, _E.SILENT, _S.ASKED, _A.ASK),
        goes(_S.HANDING, _E.SILENT, _S.HANDING, _A.ASK),
        ignores(_S.GONE, _E.SILENT, "nothing is missing"),
        goes(_S.ASKED, _E.UNREACHABLE, _S.ASKED, _A.NOTE_LATE),
        goes(_S.HANDING, _E.UNREACHABLE, _S.HANDING, _A.NOTE_LATE),
        goes(_S.ASKED, _E.REACHABLE, _S.ASKED, _A.NOTE_REACHABLE),
        goes(_S.HANDING, _E.REACHABLE, _S.HANDING, _A.NOTE_REACHABLE),
        goes(_S.ASKED, _E.REMOVED, _S.GONE, _A.STORE, _A.RELEASE, _A.PUT_KEPT, _A.DELIVER),
        goes(_S.HANDING, _E.REMOVED, _S.GONE, _A.STORE, _A.RELEASE, _A.DELIVER),
        goes(_S.ASKED, _E.DROPPED, _S.GONE, _A.STORE, _A.PUT_KEPT),
        goes(_S.HANDING, _E.DROPPED, _S.GONE, _A.STORE),
        goes(_S.GONE, _E.DROPPED, _S.GONE, _A.STORE),  # its session has ended, so the inbound session may be complete
    ],
)

_I = InboundState
_J = InboundEvent
_K = InboundAction

INBOUND_TABLE: Final[StateTable[InboundState, InboundEvent, InboundAction]] = StateTable(
    "inbound session",
    [
        ignores(_I.WAITING, _J.AWAITED, "its CONNECT waits on"),
        goes(_I.WAITING, _J.UNSETTLED, _I.SETTLING, _K.WATCH_WILLS),
        goes(_I.WAITING, _J.READY, _I.OPEN, _K.STORE, _K.GO_ON),
        ignores(_I.WAITING, _J.REACHABLE, "it is waited for now"),
        ignores(_I.WAITING, _J.CONNECT, "the later CONNECT waits for these sources as well"),
        goes(_I.WAITING, _J.CALLED_OFF, _I.ABANDONED, _K.STORE),
        goes(_I.SETTLING, _J.AWAITED, _I.WAITING, _K.UNWATCH_WILLS),
        ignores(_I.SETTLING, _J.UNSETTLED, "its CONNECT waits on"),
        goes(_I.SETTLING, _J.READY, _I.OPEN, _K.UNWATCH_WILLS, _K.STORE, _K.GO_ON),
        ignores(_I.SETTLING, _J.REACHABLE, "the next look finds that it is awaited"),
        ignores(_I.SETTLING, _J.CONNECT, "the later CONNECT waits for these wills as well"),
        goes(_I.SETTLING, _J.CALLED_OFF, _I.ABANDONED, _K.UNWATCH_WILLS, _K.STORE),
        goes(_I.OPEN, _J.REACHABLE, _I.WAITING, _K.STORE),
        ignores(_I.OPEN, _J.CONNECT, "the later CONNECT gets the session as it is here"),
        goes(_I.OPEN, _J.CALLED_OFF, _I.OPEN, _K.STORE),
        goes(_I.OPEN, _J.COMPLETE, _I.FINISHED, _K.FINISH),
        ignores(_I.ABANDONED, _J.REACHABLE, "the session is not wanted"),
        goes(_I.ABANDONED, _J.CONNECT, _I.WAITING, _K.EXPECT_WILLS),
        goes(_I.ABANDONED, _J.CALLED_OFF, _I.ABANDONED, _K.STORE),
        goes(_I.ABANDONED, _J.COMPLETE, _I.FINISHED, _K.FINISH),
    ],
)

RESET_TABLE: Final[StateTable[ResetState, ResetEvent, ResetAction]] = StateTable(
    "session reset",
    [
        goes(ResetState.NONE, ResetEvent.NOTICED, ResetState.PENDING, ResetAction.WATCH),
        goes(ResetState.PENDING, ResetEvent.NOTICED, ResetState.PENDING, ResetAction.WATCH),
        goes(ResetState.PENDING, ResetEvent.LATE, ResetState.PENDING, ResetAction.WATCH, ResetAction.SEND_AWAY),
        goes(ResetState.PENDING, ResetEvent.DUE, ResetState.NONE, ResetAction.SUBSCRIBE),
    ],
)
