"""The states of one follower, as the server of an origin sees it.

::

                   CAUGHT_UP            PROVED               LISTED
    FOLLOWING -----------------> PROVING ---> ENTERING -----------------> IN_STEP
        ^                           |             |                        |   ^
        |<-------- LAGS ------------'             |                   LAGS |   | LISTED
        |<-------- UNLISTED ----------------------'                        v   |
        '<-------- UNLISTED -------------------------------------------- LEAVING

The law: the server requires the acknowledgement of a follower in every state but FOLLOWING. So it is required before
the record can list it, and until a record without it has been read. A proposal whose outcome is unknown is void only
once a newer record has been read, because its transaction compares the revision of the earlier one.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from starlingmq.core.structures.state_table import StateTable, goes, ignores


class FollowerState(Enum):
    FOLLOWING = "following"  # it is being brought up to date, or is away
    PROVING = "proving"  # it gets each change; it is required, and has to confirm the last one
    ENTERING = "entering"  # the proposal to list it is under way
    IN_STEP = "in step"
    LEAVING = "leaving"  # the proposal to remove it is under way


class FollowerEvent(Enum):
    CAUGHT_UP = "caught up"  # it gets each change from now on
    PROVED = "proved"  # it has stored all that was written before it was required
    LAGS = "lags"  # it holds up acknowledgements, and may be left behind
    LISTED = "listed"  # a newer record lists it in step
    UNLISTED = "unlisted"  # a newer record does not


class FollowerAction(Enum):
    MARK = "mark"  # it is required at the next look; everything written until then has to be stored there first
    NOTE_INCARNATION = "note incarnation"  # the record is to list the incarnation that has proved it


_S, _E, _A = FollowerState, FollowerEvent, FollowerAction

FOLLOWER_TABLE: Final[StateTable[FollowerState, FollowerEvent, FollowerAction]] = StateTable(
    "a follower",
    [
        goes(_S.FOLLOWING, _E.CAUGHT_UP, _S.PROVING, _A.MARK),
        ignores(_S.FOLLOWING, _E.PROVED, "nothing was asked of it"),
        ignores(_S.FOLLOWING, _E.LAGS, "it holds up nothing"),
        ignores(_S.FOLLOWING, _E.UNLISTED, "the change was about another node"),
        goes(_S.PROVING, _E.PROVED, _S.ENTERING, _A.NOTE_INCARNATION),
        goes(_S.PROVING, _E.LAGS, _S.FOLLOWING),
        ignores(_S.PROVING, _E.CAUGHT_UP, "this is known"),
        ignores(_S.PROVING, _E.UNLISTED, "it is not proposed yet"),
        goes(_S.ENTERING, _E.LISTED, _S.IN_STEP),
        goes(_S.ENTERING, _E.UNLISTED, _S.FOLLOWING),
        ignores(_S.ENTERING, _E.CAUGHT_UP, "this is known"),
        ignores(_S.ENTERING, _E.PROVED, "this is known"),
        ignores(_S.ENTERING, _E.LAGS, "the record may list it already"),
        goes(_S.IN_STEP, _E.LAGS, _S.LEAVING),
        goes(_S.IN_STEP, _E.UNLISTED, _S.FOLLOWING),
        ignores(_S.IN_STEP, _E.LISTED, "the change was about another node"),
        ignores(_S.IN_STEP, _E.CAUGHT_UP, "it is listed"),
        ignores(_S.IN_STEP, _E.PROVED, "it is listed"),
        goes(_S.LEAVING, _E.LISTED, _S.IN_STEP),
        goes(_S.LEAVING, _E.UNLISTED, _S.FOLLOWING),
        ignores(_S.LEAVING, _E.CAUGHT_UP, "the record may have lost it already"),
        ignores(_S.LEAVING, _E.PROVED, "the record may have lost it already"),
        ignores(_S.LEAVING, _E.LAGS, "this is known"),
    ],
)
