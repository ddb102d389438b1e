"""May this client publish there? The answer of the rules of this node, and the rule that decides."""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING, Annotated, Final

from msgspec import Meta, Struct

from starlingmq.admin.operator_problem import AdminError
from starlingmq.admin.typed_actions import typed
from starlingmq.core.limits.address_key import peer_host
from starlingmq.core.observe.session_totals import of_clients
from starlingmq.core.routing.topics import valid_filter, valid_topic
from starlingmq.net.control_socket import Action, Report

if TYPE_CHECKING:
    from starlingmq.admin.local_node import LocalNode
    from starlingmq.core.session.session import Client

ACTIONS: Final = ("connect", "publish", "subscribe", "group")


class RuleTest(Struct, frozen=True):
    """``username`` and ``address`` are those of the connected client with this client id where they are empty.
    ``does``: one of ``ACTIONS``."""

    client_id: str = ""
    username: str = ""
    address: str = ""
    does: str = "publish"
    topic: str = ""
    qos: int = 0
    retain: bool = False
    group: str = ""


class RuleTestResult(Struct, frozen=True):
    allowed: bool
    reason: Annotated[str, Meta(description="The rule or the setting that decides, in one line.")]
    username: str
    address: str


class RuleActions:
    def __init__(self, local_node: LocalNode) -> None:
        self._local_node = local_node

    def actions(self) -> dict[str, Action]:
        return {"rules.test": typed(RuleTest, self.test)}

    async def test(self, report: Report, request: RuleTest) -> RuleTestResult:
        """Raises AdminError."""
        topic = self._checked(request)
        client = self._client(request)
        username = request.username or ("" if client is None else client.username)
        peer = f"{request.address}:0" if request.address else "" if client is None else client.peer
        ban = self._local_node.bans.of(monotonic(), peer_host(peer) if peer else "", username, request.client_id)
        if ban is not None:
            reason = f"the {ban.kind} {ban.name} is banned: {ban.reason}"
            return RuleTestResult(False, reason, username, peer_host(peer) if peer else "")
        from starlingmq.auth.rule_check import RuleQuestion, check_rules

        chain = self._local_node.access.chain
        file = self._local_node.config().auth.acl.file
        granted = None if client is None or client.rights is None else client.rights.source
        question = RuleQuestion(
            request.client_id,
            username,
            peer,
            request.does,  # type: ignore[arg-type]  # it is one of ACTIONS
            topic,
            request.qos,
            request.retain,
            request.group.encode(),
            granted if isinstance(granted, tuple) else None,
        )
        found = check_rules(chain.acl if chain is not None and file else None, file, question)
        return RuleTestResult(found.allowed, found.reason, username, peer_host(peer) if peer else "")

    def _checked(self, request: RuleTest) -> bytes:
        """The topic. Raises AdminError."""
        topic = request.topic.encode()
        if request.does not in ACTIONS:
            raise AdminError(400, f"action: must be one of {', '.join(ACTIONS)}")
        if request.qos > 2:
            raise AdminError(400, "qos: must be 0 to 2")
        if request.does == "publish" and not valid_topic(topic):
            raise AdminError(400, "topic: is not a valid topic")
        if request.does in ("subscribe", "group") and not valid_filter(topic):
            raise AdminError(400, "topic: is not a valid topic filter")
        if request.does == "group" and not request.group:
            raise AdminError(400, "group: is missing")
        return topic

    def _client(self, request: RuleTest) -> Client | None:
        """The connected client, unless the request is about another user."""
        session = self._local_node.state.ctx.sessions.get(request.client_id)
        client = None if session is None or not of_clients(session) else session.client
        return client if client is not None and request.username in ("", client.username) else None
