"""When a will is due, and which reconnection cancels it: asked by the node of the will, and by nodes that know only its
record (``cluster.wills``)."""

from __future__ import annotations


def due_after(delay: int, session_expiry: int) -> int:
    """Seconds from the end of the connection until the will is due: its Will Delay Interval, or less if the session
    ends before [MQTT-3.1.2-8]. 0: it is due at once."""
    return min(delay, session_expiry)


def is_cancelled(seconds: int, due_at: float, continues: bool, since: float) -> bool:
    """Whether a client that is back prevents its will [MQTT-3.1.3-9]. ``seconds``: as of ``due_after``. ``due_at``: the
    time at which it is due; 0.0: the connection has not ended, or the time is not known.``continues``: the client
    continues its session, which a clean start ends. ``since``: the time of its CONNECT."""
    return continues and seconds != 0 and (due_at == 0.0 or since < due_at)
