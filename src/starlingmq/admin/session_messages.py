"""The content of one message that waits for a client, or that the client has not acknowledged yet."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from msgspec import Meta, Struct
from msgspec.structs import asdict

from starlingmq.admin.declared_actions import ALL, action
from starlingmq.admin.messages import RetainedMessage, whole
from starlingmq.admin.node_rpc import Answers, NodeRpc
from starlingmq.admin.operator_problem import AdminError
from starlingmq.admin.sessions import ClientId
from starlingmq.core.messages.message import Message
from starlingmq.core.reports.session_totals import of_clients
from starlingmq.core.session.session import Session
from starlingmq.net.driver import Driver

PAYLOAD_MAX: Final = 65_536  # bytes that are shown
WINDOW: Final = "window"


class SessionMessageRequest(Struct, frozen=True):
    client_id: ClientId
    number: Annotated[
        int, Meta(ge=0, le=10**9, description="Position in the queue, from 0; or packet id in the window.")
    ] = 0
    place: Annotated[Literal["queue", "window"], Meta(description="Where the message is.")] = "queue"


class SessionMessage(RetainedMessage, frozen=True):
    """``qos``: of its delivery."""

    retain: bool
    shown: Annotated[int, Meta(description="Bytes of the payload in this response; longer ones are cut.")]


class SessionMessageAnswer(Struct, frozen=True):
    """``message`` None: this node has no such message."""

    message: SessionMessage | None


def first_found(rpc: NodeRpc, answers: Answers[SessionMessageAnswer], request: SessionMessageRequest) -> SessionMessage:
    """Raises AdminError."""
    for one in answers.results.values():
        if one.message is not None:
            return one.message
    if answers.missing:
        raise rpc.no_result(answers.missing)
    raise AdminError(404, "there is no such message any more: it was sent, acknowledged or has expired")


class SessionMessages:
    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    @action("session.message", "GET /session/message", ALL, content=True, merge=first_found)
    async def message(self, request: SessionMessageRequest) -> SessionMessageAnswer:
        """Get one message of a session's queue or inflight window. Raises AdminError."""
        session = self._driver.state.ctx.sessions.get(request.client_id)
        found = None if session is None or not of_clients(session) else _find(session, request.place, request.number)
        if found is None:
            return SessionMessageAnswer(None)
        message, qos, offset = found
        if message is None or not message.loaded:
            if not self._driver.store.readable():
                raise AdminError(503, "the disk cannot be read at the moment")
            message = self._driver.store.load([offset]).get(offset)
        return SessionMessageAnswer(None if message is None else shown(message, qos))


def _find(session: Session, place: str, number: int) -> tuple[Message | None, int, int] | None:
    """The message (None: it is on disk only), the QoS of its delivery, and its offset in the store."""
    if place == WINDOW:
        entry = None if session.window is None else session.window.entries.get(number)
        return None if entry is None else (entry.message, entry.qos, entry.message.offset)
    queue = session.queue
    if queue is None:
        return None
    if number < len(queue.items):
        outgoing = queue.items[number]
        return outgoing.message, outgoing.qos, outgoing.message.offset
    number -= len(queue.items)
    if queue.stored is None or number >= len(queue.stored):
        return None
    reference = queue.stored.peek(number)
    return None, reference.flags & 3, reference.offset


def shown(message: Message, qos: int) -> SessionMessage:
    told = asdict(whole(message, PAYLOAD_MAX)) | {"qos": qos}
    return SessionMessage(**told, retain=message.retain, shown=min(len(message.payload), PAYLOAD_MAX))
