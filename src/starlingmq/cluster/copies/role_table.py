"""The role of this node for one origin, as the newest record says.

::

    UNKNOWN --SERVES--> SERVING       another record: FOLLOWS --> FOLLOWING, RETURNS --> RETURNING, ABSENT --> APART
       |----FOLLOWS---> FOLLOWING     SERVES leads to SERVING from every state
       |----RETURNS---> RETURNING     (the record has an earlier incarnation: it proposes its own, or its removal)
       '----ABSENT----> APART

The laws:

- FENCE comes first: nothing of an older generation is stored any more when the copy is opened.
- A node that has restarted serves and stores nothing before the record has its new incarnation (RETURNING).
- A newer generation with this node as server closes what is open here, because another node may have served between.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from starlingmq.core.structures.state_table import StateTable, goes, ignores


class Role(Enum):
    UNKNOWN = "unknown"  # the record was not read yet
    APART = "apart"  # this node has nothing to do with the origin
    FOLLOWING = "following"
    RETURNING = "returning"  # this node has restarted, which the record does not know yet
    SERVING = "serving"


class RoleEvent(Enum):
    SERVES = "serves"  # the record names this incarnation of this node as server, in the generation known here
    SERVES_NEWER = "serves in a newer generation"
    FOLLOWS = "follows"
    RETURNS = "returns"  # the record has an earlier incarnation of this node
    ABSENT = "absent"  # the record does not name this node, or is gone


class RoleAction(Enum):
    FENCE = "fence"
    CLOSE = "close"
    OPEN = "open"
    UPDATE = "update"
    PROPOSE = "propose"


_R, _E, _A = Role, RoleEvent, RoleAction
_NOT_SERVING: Final[tuple[Role, ...]] = (_R.UNKNOWN, _R.APART, _R.FOLLOWING, _R.RETURNING)

ROLE_TABLE: Final[StateTable[Role, RoleEvent, RoleAction]] = StateTable(
    "the role for an origin",
    [
        *[goes(state, _E.SERVES_NEWER, _R.SERVING, _A.FENCE, _A.OPEN) for state in _NOT_SERVING],
        *[goes(state, _E.SERVES, _R.SERVING, _A.FENCE, _A.OPEN) for state in _NOT_SERVING],
        *[goes(state, _E.FOLLOWS, _R.FOLLOWING, _A.FENCE) for state in _NOT_SERVING],
        *[goes(state, _E.RETURNS, _R.RETURNING, _A.FENCE, _A.PROPOSE) for state in _NOT_SERVING],
        *[goes(state, _E.ABSENT, _R.APART, _A.FENCE) for state in _NOT_SERVING[2:]],
        goes(_R.UNKNOWN, _E.ABSENT, _R.APART),
        ignores(_R.APART, _E.ABSENT, "the change was about other nodes"),
        goes(_R.SERVING, _E.SERVES, _R.SERVING, _A.UPDATE),
        goes(_R.SERVING, _E.SERVES_NEWER, _R.SERVING, _A.CLOSE, _A.FENCE, _A.OPEN),
        goes(_R.SERVING, _E.FOLLOWS, _R.FOLLOWING, _A.CLOSE, _A.FENCE),
        goes(_R.SERVING, _E.RETURNS, _R.RETURNING, _A.CLOSE, _A.FENCE, _A.PROPOSE),
        goes(_R.SERVING, _E.ABSENT, _R.APART, _A.CLOSE, _A.FENCE),
    ],
)
