"""What the connections of one listener share: its name, its limits, and how many of them there are."""

from __future__ import annotations

WRITE_BUFFER = 1024 * 1024


class Gate:
    """Counts connections in and out of one listener, and what it turned away.

    ``name`` is the bound URL; ``max_connections`` 0 means no limit; ``write_buffer`` is in bytes: above it the driver
    is told ``blocked``; ``path`` is the URL path a WebSocket request must name; ``refused`` counts by reason and only
    ever holds the few reasons spelled in this package; with ``identity`` a client is called what its certificate says;
    ``subprotocol`` is what a WebSocket has to be for ("" for NATS, which has no name for that); ``origins`` are those
    whose pages may open one, all if it is empty.
    """

    __slots__ = (
        "connections",
        "identity",
        "max_connections",
        "name",
        "origins",
        "path",
        "refused",
        "subprotocol",
        "write_buffer",
    )

    def __init__(
        self,
        name: str,
        max_connections: int = 0,
        write_buffer: int = WRITE_BUFFER,
        path: str = "",
        identity: bool = False,
        subprotocol: str = "mqtt",
        origins: frozenset[str] = frozenset(),
    ) -> None:
        self.name = name
        self.max_connections = max_connections
        self.write_buffer = write_buffer
        self.path = path
        self.identity = identity
        self.subprotocol = subprotocol
        self.origins = origins
        self.connections = 0
        self.refused: dict[str, int] = {}

    def enter(self) -> bool:
        """Take a place; False when there is none. A connection that entered must leave exactly once."""
        if self.max_connections and self.connections >= self.max_connections:
            self.refuse("max_connections")
            return False
        self.connections += 1
        return True

    def leave(self) -> None:
        self.connections -= 1

    def refuse(self, reason: str) -> None:
        self.refused[reason] = self.refused.get(reason, 0) + 1
