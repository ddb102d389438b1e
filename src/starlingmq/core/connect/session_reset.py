"""Session reset (``Session.needs_reset``): a newer session may exist on an unreachable node, so the client must be told
session present = 0.

Until the client certainly knows, which is when it sends something after that CONNACK, everything continues as before:
this session receives messages by its earlier subscriptions, and so does the newer one.
"""

from __future__ import annotations

from typing import Final

from starlingmq.core.context.context import Context
from starlingmq.core.context.ready import WINDOW_PUT
from starlingmq.core.messages.outgoing import RELEASED
from starlingmq.core.observe.audit import name_of
from starlingmq.core.session.session import Client, Session

LOST: Final = "session_lost"  # counted and logged: a client is told session present 0 although it had a session
UNSETTLED: Final = "unsettled_qos2"  # reason of dropped messages


def knows(client: Client) -> bool:
    """Whether input of the client shows that it has read CONNACK. Input that came together with CONNECT, or before
    CONNACK was stored and could be sent, does not, since a client need not wait for CONNACK. A SUBSCRIBE is an
    exception: from then on the client has the subscriptions that it asked for, whatever CONNACK says.

    CONNACK is the first packet that is sent, unless a challenge came before it. Later answers may still wait to be
    stored."""
    sent = client.waiting == 0 if client.auth_method else client.bytes_out != 0
    return sent and client.bytes_in > client.greeted


def sends_session_lost(session: Session) -> bool:
    """Whether CONNACK says that the session is lost: until the client has sent something after such a CONNACK. For a
    client that publishes at QoS 2, the handshakes that this node knows decide, whatever happened to its subscriptions.
    """
    if not session.needs_reset or session.reset_confirmed:
        return False
    return session.inbound is None or session.subscription_count() != 0


def renumber(ctx: Context, session: Session, last_id: int) -> None:
    """Give new packet ids above ``last_id`` to messages that were sent to a client which does not know them any more.
    Messages that it has partly acknowledged it has received. Unacknowledged QoS 2 messages are dropped: the client may
    have processed them (4.3.3, method A), and would take them for other messages."""
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
