"""Requests of operators: answered by this node, by another node, or by all nodes of the cluster.

A request is the name of an action and its arguments; its answer is the result of the action, or one line that says why
there is none. Between nodes both are JSON, in frames of the peer links (``cluster.view.operator_rpc``):
``{"action", "arguments", "operator"}``, answered by ``{"result"}`` or ``{"error", "status"}``. Any node holding the
cluster secret may send requests; the sending node has already authorized the operator.

Callers give requests and expect replies as structs (``admin.typed_actions``). A reply without a field that the caller
needs, from a node of another version, counts as no answer.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar

import msgspec
from msgspec.structs import replace

from starlingmq.admin.operator_problem import AdminError, UnansweredError
from starlingmq.admin.typed_actions import PAGE, Limit, texts
from starlingmq.net.control_socket import Action, Report
from starlingmq.net.operators import NOBODY, Operator, acting, on_behalf_of

if TYPE_CHECKING:
    from starlingmq.net.peers.cluster_shell import Cluster

log = logging.getLogger("starlingmq.admin")

CALL_SECONDS: Final = 3.0  # for one node to answer
LIST_SECONDS: Final = 5.0  # for one page; nodes that were not asked by then are left to the next page
MALFORMED: Final = "its answer is malformed; check that all nodes run the same version"

Result = dict[str, Any]
R = TypeVar("R", bound=msgspec.Struct)
E = TypeVar("E", bound=msgspec.Struct)


class NodeRequest(msgspec.Struct, frozen=True):
    action: str
    arguments: dict[str, str] = {}
    operator: Operator = NOBODY


class NodeReply(msgspec.Struct, frozen=True, omit_defaults=True):
    result: Result | None = None
    error: str = ""
    status: int = 0


class Missing(msgspec.Struct, frozen=True):
    """A node that did not answer, and why."""

    node: str
    why: str


class Answers(NamedTuple, Generic[R]):
    """The replies of nodes, in the order of their names, and the nodes without a reply."""

    results: dict[str, R]
    missing: list[Missing]


class ListRequest(msgspec.Struct, frozen=True):
    """A request for a page of a list of all nodes. ``cursor``: ``next`` of the previous page; ``node``: "" for all."""

    cursor: str = ""
    limit: Limit = PAGE
    node: str = ""


class ListPart(msgspec.Struct, frozen=True, kw_only=True):
    """A page of the list of one node, and the cursor behind it; None if the list ends."""

    next: str | None


P = TypeVar("P", bound=ListPart)


class Page(NamedTuple, Generic[E]):
    entries: list[E]
    next: str | None
    missing: list[Missing]


def nothing_to_report(what: str, done: int, total: int, unit: str) -> None:
    """Ignore the progress: the caller asks for it later, or not at all."""


class NodeRpc:
    """``actions`` are those that this node performs itself, for requests that reach any node. Entries may be added.
    ``one_machine``: the nodes are the workers of one broker.
    """

    def __init__(
        self, name: str, actions: Mapping[str, Action], cluster: Cluster | None, one_machine: bool = False
    ) -> None:
        self.name = name
        self._one_machine = one_machine
        self.actions = dict(actions)
        self._cluster = cluster
        if cluster is not None:
            cluster.on_question = self._answer

    def members(self) -> list[tuple[int, str]]:
        """Number and name of all nodes, in the order of the numbers. Without a cluster the number is 0."""
        cluster = self._cluster
        if cluster is None or cluster.state is None:
            return [(0, self.name)]
        return sorted(cluster.names().items())

    def target(self, node: str) -> str | None:
        """Return the node that a change of settings is for; None: all. ``node``: a name, "*", or "" for this node.
        Workers of one machine are one broker to their operator, so that "" is all of them.
        """
        return None if node == "*" or (not node and self._one_machine) else node or self.name

    # One node

    async def here(self, action: str, arguments: dict[str, str], report: Report = nothing_to_report) -> Result:
        if action not in self.actions:
            raise AdminError(409, f"this node does not accept requests for {action} from other nodes")
        return await self.actions[action](report, arguments)

    async def at(self, node: str, action: str, arguments: dict[str, str], seconds: float = CALL_SECONDS) -> Result:
        """Return the result of an action at one node; "" is this node. Raises AdminError, and UnansweredError if the
        node does not answer."""
        if node in ("", self.name):
            return await self.here(action, arguments)
        numbers = {name: number for number, name in self.members()}
        if node not in numbers:
            raise AdminError(404, f"there is no node {node}; the members are {', '.join(sorted(numbers))}")
        assert self._cluster is not None
        question = msgspec.json.encode(NodeRequest(action, arguments, acting.get()))
        answer, problem = await self._cluster.ask(numbers[node], question, seconds)
        if problem:
            raise UnansweredError(node, problem)
        try:
            reply = msgspec.json.decode(answer, type=NodeReply)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            raise UnansweredError(node, MALFORMED) from None
        if reply.result is None:
            raise AdminError(reply.status or 409, f"{node}: {reply.error}", reply.error)
        return reply.result

    async def ask(
        self, node: str, action: str, request: msgspec.Struct, reply: type[R], seconds: float = CALL_SECONDS
    ) -> R:
        """As ``at``, with a typed request and a typed reply."""
        return self._read(node, await self.at(node, action, texts(request), seconds), reply)

    def _read(self, node: str, result: Result, reply: type[R]) -> R:
        """Raises UnansweredError for a result that is not such a reply."""
        try:
            return msgspec.convert(result, reply)
        except msgspec.ValidationError:
            raise UnansweredError(node or self.name, MALFORMED) from None

    async def _answer(self, data: bytes) -> bytes:
        """Return the answer to a request of another node. Every error is an answer, too."""
        try:
            question = msgspec.json.decode(data, type=NodeRequest)
            with on_behalf_of(question.operator):
                return msgspec.json.encode(NodeReply(await self.here(question.action, question.arguments)))
        except AdminError as error:
            return msgspec.json.encode(NodeReply(None, str(error), error.status))
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return msgspec.json.encode(NodeReply(None, "the request is malformed", 400))
        except Exception as error:
            if not ours(error):
                log.exception("internal error in a request of another node")
                return msgspec.json.encode(NodeReply(None, f"unexpected {type(error).__name__}", 500))
            return msgspec.json.encode(NodeReply(None, str(error), 409))

    # All nodes

    async def everywhere(
        self,
        action: str,
        request: msgspec.Struct,
        reply: type[R],
        node: str | None = None,
        seconds: float = CALL_SECONDS,
    ) -> Answers[R]:
        """Ask all nodes at once, or only ``node``. Nodes that refuse are listed as missing, as those that do not
        answer. Raises AdminError if no node accepts the request."""
        if node:
            return Answers({node: await self.ask(node, action, request, reply, seconds)}, [])
        names = sorted(name for _, name in self.members())
        asked = (self.ask(name, action, request, reply, seconds) for name in names)
        results: dict[str, R] = {}
        missing: list[Missing] = []
        refusals: list[Exception] = []
        for name, one in zip(names, await asyncio.gather(*asked, return_exceptions=True), strict=True):
            if not isinstance(one, BaseException):
                results[name] = one
            elif isinstance(one, UnansweredError):
                missing.append(Missing(name, one.why))
            elif isinstance(one, Exception) and ours(one):
                missing.append(Missing(name, one.why if isinstance(one, AdminError) else str(one)))
                refusals.append(one)
            else:
                raise one
        if refusals and not results:
            raise refusals[0]
        return Answers(results, missing)

    def no_result(self, missing: list[Missing]) -> AdminError:
        """The error for an object that no node has, where ``missing`` did not answer."""
        if missing:
            away = ", ".join(f"{one.node} ({one.why})" for one in missing)
            return AdminError(503, f"not found on the nodes that answer; these do not: {away}")
        return AdminError(404, "not found on any node" if len(self.members()) > 1 else "not found on this node")

    # Lists

    async def page(
        self,
        action: str,
        request: msgspec.Struct,
        part: type[P],
        entries_of: Callable[[P], list[E]],
        wanted: ListRequest,
    ) -> Page[E]:
        """The next entries of a list of which each node has a part: one node after the other, in the order of numbers.

        ``wanted`` is the operator's request; its cursor, limit and node are read here. ``request`` selects the entries;
        each node is asked with a limit and a cursor of its own. ``part`` is the reply of one node. The entries are
        structs with a field ``node``, which is set here. The cursor of the whole list puts the number of a node before
        the cursor of that node. A page may be shorter than ``limit``; the last page has the cursor None. Raises
        AdminError.
        """
        limit = wanted.limit
        members = self.members()
        if wanted.node:
            members = [member for member in members if member[1] == wanted.node]
            if not members:
                raise AdminError(404, f"there is no node {wanted.node}")
        first, inner = _take_apart(wanted.cursor)
        entries: list[E] = []
        missing: list[Missing] = []
        until = asyncio.get_running_loop().time() + LIST_SECONDS
        left = [member for member in members if member[0] >= first]
        for number, name in left:
            at = inner if number == first else ""
            if len(entries) >= limit or asyncio.get_running_loop().time() >= until:
                return Page(entries, f"{number}.", missing)
            asked = {**texts(request), "limit": str(limit - len(entries)), "cursor": at}
            try:
                found = self._read(name, await self.at(name, action, asked), part)
            except UnansweredError as error:
                missing.append(Missing(name, error.why))
                continue
            except AdminError as error:
                if error.status == 400 or name == self.name:
                    raise
                missing.append(Missing(name, error.why))
                continue
            entries += [replace(entry, node=name) for entry in entries_of(found)]
            if found.next is not None:
                return Page(entries, f"{number}.{found.next}", missing)
        return Page(entries, None, missing)


def ours(error: Exception) -> bool:
    """Whether the broker raised the error on purpose, with one line for the operator. Others are bugs."""
    return type(error).__module__.startswith("starlingmq.")


def _take_apart(cursor: str) -> tuple[int, str]:
    """The number of a node, and the cursor of that node."""
    number, dot, inner = (cursor or "0.").partition(".")
    if not dot or not number.isascii() or not number.isdigit() or len(number) > 20:
        raise AdminError(400, "cursor: must be the value of next in the previous page")
    return int(number), inner
