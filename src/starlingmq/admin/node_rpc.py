"""Where operators' questions are answered: by this node, by another one, or by all nodes of the cluster.

A question is the name of an action and its arguments, an answer what the action returns, or one line that says why not.
Between nodes they are JSON, in frames of the links (cluster.operator_rpc): ``{"action", "arguments"}``, ``{"result"}``
or ``{"error", "status"}``. Whoever knows the secret of the cluster may ask; that he asks for an operator who may was
for his node to make sure.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from starlingmq.admin.operator_problem import AdminError, UnansweredError
from starlingmq.net.control_socket import Action, Report

if TYPE_CHECKING:
    from starlingmq.net.peers.cluster_shell import Cluster

log = logging.getLogger("starlingmq.admin")

CALL_SECONDS: Final = 3.0  # for one node to answer
LIST_SECONDS: Final = 5.0  # for one page; what is not there by then is for the next one

Result = dict[str, Any]


class NodeRequest(msgspec.Struct, frozen=True):
    action: str
    arguments: dict[str, str] = {}


class NodeReply(msgspec.Struct, frozen=True, omit_defaults=True):
    result: Result | None = None
    error: str = ""
    status: int = 0


class Missing(msgspec.Struct, frozen=True):
    """A node that did not answer, and why."""

    node: str
    why: str


class Answers(NamedTuple):
    """What nodes said, in the order of their names, and those that said nothing."""

    results: dict[str, Result]
    missing: list[Missing]


class Page(NamedTuple):
    entries: list[Result]
    next: str | None
    missing: list[Missing]


def nothing_to_report(what: str, done: int, total: int, unit: str) -> None:
    """Whoever wants to know how far it is looks again later."""


class NodeRpc:
    """``actions`` are what this node does itself, for whoever asks at whatever node. They may be added to."""

    def __init__(self, name: str, actions: Mapping[str, Action], cluster: Cluster | None) -> None:
        self.name = name
        self.actions = dict(actions)
        self._cluster = cluster
        if cluster is not None:
            cluster.on_question = self._answer

    def members(self) -> list[tuple[int, str]]:
        """Number and name of all nodes, in the order of the numbers; 0 where there is no cluster."""
        cluster = self._cluster
        if cluster is None or cluster.state is None:
            return [(0, self.name)]
        return sorted(cluster.names().items())

    # One node

    async def here(self, action: str, arguments: dict[str, str], report: Report = nothing_to_report) -> Result:
        if action not in self.actions:
            raise AdminError(409, f"this node does not accept requests for {action} from other nodes")
        return await self.actions[action](report, arguments)

    async def at(self, node: str, action: str, arguments: dict[str, str], seconds: float = CALL_SECONDS) -> Result:
        """What that node says; "": this one. Raises AdminError, and UnansweredError if it says nothing."""
        if node in ("", self.name):
            return await self.here(action, arguments)
        numbers = {name: number for number, name in self.members()}
        if node not in numbers:
            raise AdminError(404, f"there is no node {node}; the members are {', '.join(sorted(numbers))}")
        assert self._cluster is not None
        question = msgspec.json.encode(NodeRequest(action, arguments))
        answer, problem = await self._cluster.ask(numbers[node], question, seconds)
        if problem:
            raise UnansweredError(node, problem)
        try:
            reply = msgspec.json.decode(answer, type=NodeReply)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            raise UnansweredError(node, "its answer is malformed; check that all nodes run the same version") from None
        if reply.result is None:
            raise AdminError(reply.status or 409, f"{node}: {reply.error}", reply.error)
        return reply.result

    async def _answer(self, data: bytes) -> bytes:
        """What another node is told. Whatever goes wrong is an answer, too."""
        try:
            question = msgspec.json.decode(data, type=NodeRequest)
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

    # All of them

    async def everywhere(self, action: str, arguments: dict[str, str], node: str | None = None) -> Answers:
        """Asked at once of all nodes, or of ``node``. Those that can not do it are missing, too; raises AdminError if
        none of them can."""
        if node:
            return Answers({node: await self.at(node, action, arguments)}, [])
        names = sorted(name for _, name in self.members())
        asked = (self.attempt(name, action, arguments) for name in names)
        said = await asyncio.gather(*asked, return_exceptions=True)
        results: dict[str, Result] = {}
        missing: list[Missing] = []
        refusals: list[Exception] = []
        for name, one in zip(names, said, strict=True):
            if isinstance(one, dict):
                results[name] = one
            elif isinstance(one, Missing):
                missing.append(one)
            elif isinstance(one, Exception) and ours(one):
                missing.append(Missing(name, one.why if isinstance(one, AdminError) else str(one)))
                refusals.append(one)
            else:
                raise one
        if refusals and not results:
            raise refusals[0]
        return Answers(results, missing)

    async def attempt(self, node: str, action: str, arguments: dict[str, str]) -> Result | Missing:
        """What that node says, or that it says nothing. Raises AdminError."""
        try:
            return await self.at(node, action, arguments)
        except UnansweredError as error:
            return Missing(node, error.why)

    async def changed(self, action: str, arguments: dict[str, str], node: str | None = None) -> Answers:
        """As ``everywhere``, of what is done at the nodes that have it. Raises AdminError, also if none has."""
        answers = await self.everywhere(action, arguments, node)
        if not any(result.get("found", True) for result in answers.results.values()):
            if answers.missing:
                away = ", ".join(f"{one.node} ({one.why})" for one in answers.missing)
                raise AdminError(503, f"not found on the nodes that answer; these do not: {away}")
            raise AdminError(404, "not found on any node" if len(self.members()) > 1 else "not found on this node")
        return answers

    # Lists

    async def page(
        self,
        action: str,
        key: str,
        arguments: dict[str, str],
        limit: int,
        cursor: str | None,
        node: str | None = None,
    ) -> Page:
        """The next entries of a list that each node has a part of: one node after the other, in the order of numbers.

        ``action`` gives entries under ``key`` and ``next``, the cursor of that node; ours names the node before it. A
        page may be shorter than ``limit``, and is the last one if its cursor is None. Raises AdminError.
        """
        members = self.members()
        if node is not None:
            members = [member for member in members if member[1] == node]
            if not members:
                raise AdminError(404, f"there is no node {node}")
        first, inner = _take_apart(cursor)
        entries: list[Result] = []
        missing: list[Missing] = []
        until = asyncio.get_running_loop().time() + LIST_SECONDS
        left = [member for member in members if member[0] >= first]
        for number, name in left:
            at = inner if number == first else ""
            if len(entries) >= limit or asyncio.get_running_loop().time() >= until:
                return Page(entries, f"{number}.", missing)
            asked = {**arguments, "limit": str(limit - len(entries)), "cursor": at}
            try:
                found = await self.attempt(name, action, asked)
            except AdminError as error:
                if error.status == 400 or name == self.name:
                    raise
                found = Missing(name, error.why)
            if isinstance(found, Missing):
                missing.append(found)
                continue
            entries += [{**entry, "node": name} for entry in found[key]]
            if found["next"] is not None:
                return Page(entries, f"{number}.{found['next']}", missing)
        return Page(entries, None, missing)


def ours(error: Exception) -> bool:
    """Whether it says in one line what is wrong; anything else is a mistake of ours."""
    return type(error).__module__.startswith("starlingmq.")


def _take_apart(cursor: str | None) -> tuple[int, str]:
    """Number of a node, and its own cursor."""
    number, dot, inner = (cursor or "0.").partition(".")
    if not dot or not number.isascii() or not number.isdigit() or len(number) > 20:
        raise AdminError(400, "cursor: must be the value of next in the previous page")
    return int(number), inner
