"""The states of a connection (``core.session.session.Client``), and why one is not read."""

from __future__ import annotations

from typing import Final

NEW: Final = 0  # nothing but CONNECT is welcome
AUTHENTICATING: Final = 1  # CONNECT seen; the answer of ``authenticate`` or an AUTH packet is awaited
OPEN: Final = 2
CLOSED: Final = 3

UNPROVED: Final = "unproved"  # ``Client.standing`` of a client of which only the name is kept, with its will

# Why a connection is not read, as bits of ``Client.halted``.
ASKING: Final = 1  # a question to a hook is open
HELD: Final = 2  # a receiver's queue is full
TURN_OVER: Final = 4  # its share of this turn is used up
WORKING: Final = 8  # one of its packets is being worked off over several turns
PACED: Final = 32  # it has published faster than it may
DEAF: Final = 16  # it sends but does not read: our answers would pile up without bound
