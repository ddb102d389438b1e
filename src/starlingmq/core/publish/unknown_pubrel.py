"""PUBRELs of handshakes that no node knows, for which the connection of a 3.x client was closed.

MQTT 3.1.1 has no code for such a PUBREL. The connection is closed once, so that the loss is noticed; a client that
repeats the PUBREL is then answered by PUBCOMP [MQTT-4.3.3-2], since otherwise it could never connect again.

This memory belongs to one node and is not stored. A node that does not remember closes the connection once more, so a
client gets its PUBCOMP after at most as many connections as there are nodes (and restarts of them). Each closing
records the PUBREL that caused it, whatever is removed for it, so each repetition at the same node makes progress.
"""

from __future__ import annotations

from typing import Final

CLIENT_MAX: Final = 1024  # packet ids of one client
# packet ids of all clients; beyond this, the client whose connection was closed first is removed
TOTAL_MAX: Final = 65_536


class UnknownPubrels:
    total: int
    _noted: dict[str, dict[int, None]]  # packet ids by client id, both in the order of their recording

    def __init__(self) -> None:
        self.total = 0
        self._noted = {}

    def note(self, client_id: str, packet_id: int) -> None:
        """The connection is closed for ``packet_id``."""
        noted = self._noted.pop(client_id, {})  # and moved to the end
        self._noted[client_id] = noted
        if packet_id in noted:
            return
        if len(noted) >= CLIENT_MAX:
            del noted[next(iter(noted))]
            self.total -= 1
        noted[packet_id] = None
        self._added(1)

    def note_too(self, client_id: str, others: list[int]) -> None:
        """It had sent PUBREL for these as well, and its connection is not closed for each of them; as many as there is
        room for."""
        noted = self._noted[client_id]
        before = len(noted)
        for packet_id in others:
            if len(noted) >= CLIENT_MAX:
                break
            noted[packet_id] = None
        self._added(len(noted) - before)

    def _added(self, count: int) -> None:
        self.total += count
        while self.total > TOTAL_MAX:  # ends: one client has fewer
            self.total -= len(self._noted.pop(next(iter(self._noted))))

    def take(self, client_id: str, packet_id: int) -> bool:
        """Whether the connection was closed for this PUBREL before; if so, the record is removed."""
        noted = self._noted.get(client_id)
        if noted is None or packet_id not in noted:
            return False
        del noted[packet_id]
        self.total -= 1
        if not noted:
            del self._noted[client_id]
        return True
