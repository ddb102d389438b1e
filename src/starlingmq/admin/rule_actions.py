"""May this client publish there? The answer of the rules of this node, and the rule that decides."""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING, Annotated, Final, Literal

from msgspec import Meta, Struct, field

from starlingmq.admin.declared_actions import NODE, action
from starlingmq.admin.operator_problem import AdminError
from starlingmq.core.limits.address_key import peer_host
from starlingmq.core.reports.session_totals import of_clients
from starlingmq.core.topics.topics import valid_filter, valid_topic

if TYPE_CHECKING:
    from starlingmq.admin.local_node import LocalNode
    from starlingmq.auth.acl import Rule
    from starlingmq.core.session.session import Client

RULE_COLUMNS: Final = "number: rule, name, decision, actions, names: for, applied: clients"
RULES_MAX: Final = 500


class RuleTest(Struct, frozen=True):
    """``username``, ``address`` and ``listener`` are those of the connected client with this client id where they are
    empty."""

    client_id: Annotated[str, Meta(max_length=65535, description="Client id.")] = ""
    username: Annotated[
        str,
        Meta(
            max_length=65535,
            description="User name. Default: that of the client, if it is connected.",
            extra={"ctl": "--user"},
        ),
    ] = ""
    address: Annotated[
        str, Meta(max_length=100, description="Address without a port. Default: that of the connected client.")
    ] = ""
    listener: Annotated[
        str, Meta(max_length=1000, description="URL of the listener. Default: that of the connected client.")
    ] = ""
    does: Annotated[Literal["connect", "publish", "subscribe", "group"], Meta(description="What the client does.")] = (
        field(default="publish", name="action")
    )
    topic: Annotated[str, Meta(max_length=65535, description="Topic, or topic filter.")] = ""
    qos: Annotated[int, Meta(ge=0, le=2, description="QoS of the message.")] = 0
    retain: Annotated[bool, Meta(description="The message is retained.")] = False
    group: Annotated[str, Meta(max_length=65535, description="Name of the group, for the action group.")] = ""


class RuleTestResult(Struct, frozen=True):
    allowed: bool
    reason: Annotated[str, Meta(description="The rule or the setting that decides, in one line.")]
    username: str
    address: str


class RuleInfo(Struct, frozen=True):
    number: int
    decision: Literal["allow", "deny"]
    actions: list[str]
    names: Annotated[dict[str, str], Meta(description="Whom and what it is about, by the names of the rules file.")]
    name: Annotated[str, Meta(description="Of a rule that an operator has created; empty: of the ACL file.")]
    applied: Annotated[int, Meta(description="Clients that got it with their rights, at each login and reload.")]


class RulesReply(Struct, frozen=True):
    """``file`` is empty if there is none. Without rules everything is allowed. ``revision``: of users and rules of
    operators, which come after those of the file. ``total``: of all rules."""

    file: str
    revision: int
    default: Literal["allow", "deny"]
    total: int
    rules: list[RuleInfo]


class RuleActions:
    def __init__(self, local_node: LocalNode) -> None:
        self._local_node = local_node

    @action("rules", "GET /rules", NODE, ctl="rules", columns=RULE_COLUMNS)
    async def rules(self) -> RulesReply:
        """List the rules of the ACL file and of operators, and how many clients each applied to. Lists the first
        ``RULES_MAX``."""
        file = self._local_node.config().auth.acl.file
        chain, table = self._local_node.access.chain, self._local_node.access.stored
        if chain is None or not (file or table.rules):
            return RulesReply("", table.revision, "allow", 0, [])
        rules = chain.acl.rules
        shown = [_info(number, rule) for number, rule in enumerate(rules[:RULES_MAX], 1)]
        return RulesReply(file, table.revision, "allow" if chain.acl.default else "deny", len(rules), shown)

    @action("rules.test", "GET /rules/test", NODE, ctl="may client_id does topic?")
    async def test(self, request: RuleTest) -> RuleTestResult:
        """Test whether a client may do something, and which rule decides. Raises AdminError."""
        topic = self._checked(request)
        client = self._client(request)
        username = request.username or ("" if client is None else client.username)
        peer = f"{request.address}:0" if request.address else "" if client is None else client.peer
        ban = self._local_node.bans.of(monotonic(), peer_host(peer) if peer else "", username, request.client_id)
        if ban is not None:
            reason = f"the {ban.kind} {ban.name} is banned: {ban.reason}"
            return RuleTestResult(False, reason, username, peer_host(peer) if peer else "")
        from starlingmq.auth.rule_check import RuleQuestion

        granted = None if client is None or client.rights is None else client.rights.source
        question = RuleQuestion(
            request.client_id,
            username,
            peer,
            request.does,
            topic,
            request.qos,
            request.retain,
            request.group.encode(),
            granted if isinstance(granted, tuple) else None,
            connected=client is not None and client.username == username,
            listener=request.listener or ("" if client is None else client.listener),
        )
        found = self._local_node.access.ask_rules(question)
        return RuleTestResult(found.allowed, found.reason, username, peer_host(peer) if peer else "")

    def _checked(self, request: RuleTest) -> bytes:
        """The topic. Raises AdminError."""
        topic = request.topic.encode()
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


def _info(number: int, rule: Rule) -> RuleInfo:
    given = rule.given
    actions = given.allow if rule.allow else given.deny
    default = type(given)()
    names = {
        name: _text(getattr(given, name))
        for name in given.__struct_fields__
        if name not in ("allow", "deny") and getattr(given, name) != getattr(default, name)
    }
    return RuleInfo(
        number,
        "allow" if rule.allow else "deny",
        [actions] if isinstance(actions, str) else list(actions or ()),
        names,
        rule.name,
        rule.applied,
    )


def _text(value: object) -> str:
    if isinstance(value, tuple):
        return ", ".join(str(one) for one in value)
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)
