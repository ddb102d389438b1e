"""A session whose client has to begin anew, because a later one than this can not be reached (``Session.anew``).

Until the client is sure to know, which is when it sends something after CONNACK said so, everything is as if it had
gone on: this session collects by what was subscribed to before, and so does who has the later one.
"""

from __future__ import annotations

from typing import Final

from starlingmq.core.context import Context
from starlingmq.core.observe.audit import name_of
from starlingmq.core.ready import WINDOW_PUT
from starlingmq.core.session.outgoing import RELEASED
from starlingmq.core.session.session import Client, Session

LOST: Final = "session_lost"  # counted and logged: a client is told that its session is not the one it had
UNSETTLED: Final = "unsettled_qos2"  # why messages were dropped


def knows(client: Client) -> bool:
    """Whether what it sends now shows that it has read CONNACK. What came together with CONNECT, or before CONNACK was
    stored and could go out, does not: a client need not wait for it. Who subscribes is an exception: from then on it
    has what it asks for, whatever CONNACK says."""
    return client.waiting == 0 and client.bytes_in > client.greeted


def is_told(session: Session) -> bool:
    """Whether CONNACK says that the session is lost: until its client has sent something after such a CONNACK. Who
    publishes at QoS 2 goes by what this node knows of it, whatever became of its subscriptions."""
    if not session.anew or session.aware:
        return False
    return session.inbound is None or bool(session.subscriptions)


def renumber(ctx: Context, session: Session, last_id: int) -> None:
    """What was sent to a client that knows nothing of it now, it gets under packet ids past ``last_id``. What it has
    acknowledged in part it has. What it has not acknowledged at QoS 2 it may have acted on (4.3.3, method A), and would
    take for another message: it is given up."""
    window = session.window
    if window is None:
        return
    entries = list(window.entries.items())
    window.last_id = max([last_id, *window.entries])
    for packet_id, outgoing in entries:
        window.discard(packet_id)
        if ctx.recording:
            ctx.done(session, packet_id)
        if outgoing.qos == 2:
            if outgoing.stage != RELEASED:
                ctx.drop(UNSETTLED, session.client_id)
                session.dropped += 1
                if ctx.audit is not None:
                    ctx.audit.dropped(name_of(session), outgoing.message, outgoing.qos, UNSETTLED)
        elif outgoing.stage != RELEASED:
            window.add(outgoing, ctx.now)
            ctx.note(WINDOW_PUT, session, outgoing)
    window.owe_all()
