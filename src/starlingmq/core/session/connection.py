"""The states of a connection (``core.session.session.Client``), and the reasons for not reading it."""

from __future__ import annotations

from typing import Final

NEW: Final = 0  # only CONNECT is valid
AUTHENTICATING: Final = 1  # CONNECT was received; an answer of ``authenticate`` or an AUTH packet is awaited
OPEN: Final = 2
CLOSED: Final = 3

UNPROVED: Final = "unproved"  # ``Client.standing`` of a client that is known by name only, together with its will

# Reasons for not reading a connection, as bits of ``Client.halted``.
ASKING: Final = 1  # a question to a hook is open
HELD: Final = 2  # the queue of a receiver is full
TURN_OVER: Final = 4  # its share of this turn is used up
WORKING: Final = 8  # one of its packets is being processed over several turns
PACED: Final = 32  # it has exceeded its publish rate
DEAF: Final = 16  # it sends but does not read, so the answers would accumulate
