"""What operators may ask at any node, of all of them: the actions of the HTTP API and of commands.

Arguments are text, as the control socket has them. ``node`` is the one that is meant: for lists "" is all of them, for
what is done to one node "" is this one. Each answer about several nodes has ``missing``: those that did not answer, and
why.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from operator import itemgetter
from typing import Any, Final

from msgspec import json, to_builtins

from starlingmq.admin.node_rpc import Answers, NodeRpc
from starlingmq.admin.operator_problem import AdminError
from starlingmq.admin.paging import limit_of
from starlingmq.net.control_socket import Action, Report

Arguments = dict[str, str]
Result = dict[str, Any]

Asked = Callable[[str, Arguments], Awaitable[Result]]

PAGED: Final = {"clients": ("q",), "sessions": ("q", "connected"), "subscriptions": ("q",), "groups.led": ("prefix",)}
"""Lists of which each node has a part: the arguments that go along."""
LOCAL: Final = ("publish", "retained", "retained.show", "retained.delete")
DRAIN: Final = ("drain.state", "drain.begin", "drain.cancel")
AT_ONE: Final = (
    "overview",
    "log",
    "config",
    "listeners",
    "storage.stats",
    "drain.state",
    "drain.begin",
    "drain.cancel",
)
"""What is asked of one node."""


class ClusterActions:
    """The actions by name, in ``actions``."""

    def __init__(self, desk: NodeRpc) -> None:
        self.desk = desk
        own: dict[str, Asked] = {
            "session": self._session,
            "client.kick": self._change,
            "session.end": self._change,
            "bans": self._bans,
            "ban": self._ban,
            "ban.lift": self._lift,
            "streams": self._streams,
            "streams.create": self._stream,
            "streams.trim": self._stream,
            "streams.delete": self._stream,
            "overviews": self._overviews,
            "activity": self._activity,
            "links": self._links,
            "reload": self._reload,
            "leave": self._leave,
        }
        self.actions = {name: _named(name, action) for name, action in own.items()}
        for name in PAGED:
            self.actions[name.replace(".led", ".all")] = _named(name, self._list)
        for name in LOCAL:
            self.actions[name] = _named(name, self._here)
        for name in AT_ONE:
            self.actions[name] = _named(name, self._at)

    async def _here(self, action: str, arguments: Arguments) -> Result:
        return await self._say(action, "", arguments)

    async def _at(self, action: str, arguments: Arguments) -> Result:
        return await self._say(action, arguments.get("node", ""), arguments)

    async def _say(self, action: str, node: str, arguments: Arguments) -> Result:
        return {"node": node or self.desk.name, **await self.desk.at(node, action, arguments)}

    async def _list(self, action: str, arguments: Arguments) -> Result:
        key = action.partition(".")[0]
        chosen = {name: arguments[name] for name in PAGED[action] if arguments.get(name)}
        page = await self.desk.page(
            action, key, chosen, limit_of(arguments), arguments.get("cursor"), arguments.get("node") or None
        )
        return {"node": self.desk.name, key: page.entries, "next": page.next, "missing": to_builtins(page.missing)}

    async def _session(self, action: str, arguments: Arguments) -> Result:
        answers = await self.desk.changed(action, _client(arguments), arguments.get("node"))
        there = [{**one, "node": node} for node, one in answers.results.items() if one.get("found", True)]
        # At a node that was away there may be one from before.
        best = max(there, key=lambda one: (one["client"] is not None, one["session"]["owner_epoch"]))
        return {**best, "missing": to_builtins(answers.missing)}

    async def _change(self, action: str, arguments: Arguments) -> Result:
        answers = await self.desk.changed(action, _client(arguments), arguments.get("node"))
        done = {node: one for node, one in answers.results.items() if one["found"]}
        (first, *_) = done.values()
        return {"done": first["done"], "nodes": list(done), "missing": to_builtins(answers.missing)}

    # Bans

    async def _bans(self, action: str, arguments: Arguments) -> Result:
        return self._joined(await self.desk.everywhere(action, {}, arguments.get("node")), "bans")

    async def _ban(self, action: str, arguments: Arguments) -> Result:
        said = await self.desk.here("bans.said", arguments)
        return await self._tell(said, arguments)

    async def _lift(self, action: str, arguments: Arguments) -> Result:
        said = await self.desk.here("bans.said", {**arguments, "seconds": "0"})
        found = await self._tell(said, arguments)
        if not found["lifted"]:
            away = ", ".join(one["node"] for one in found["missing"])
            raise AdminError(404, "no such ban" + (f" (these nodes do not answer: {away})" if away else ""))
        return found

    async def _tell(self, said: Result, arguments: Arguments) -> Result:
        """Those that do not hear of it now are told when they are back."""
        told = {"said": json.encode(said["said"]).decode(), "by": arguments.get("by", "")}
        answers = await self.desk.everywhere("bans.hear", told)
        lifted = any(one["lifted"] for one in answers.results.values())
        return {"nodes": list(answers.results), "lifted": lifted, "missing": to_builtins(answers.missing)}

    # Streams

    async def _streams(self, action: str, arguments: Arguments) -> Result:
        return self._joined(await self.desk.everywhere("stream.all", {}, arguments.get("node")), "streams")

    async def _stream(self, action: str, arguments: Arguments) -> Result:
        chosen = {name: value for name, value in arguments.items() if name not in ("node", "by")}
        doing = action.partition(".")[2]
        answers = await self.desk.everywhere(f"stream.{doing}", chosen, arguments.get("node"))
        if (
            doing != "trim" and not arguments.get("node") and "stream.word" in self.desk.actions
        ):  # who is not there now hears of it when it is
            told = {"name": chosen.get("name", ""), "deleted": "yes"} if doing == "delete" else chosen
            said = json.encode((await self.desk.here("stream.word", told))["said"]).decode()
            await self.desk.everywhere("stream.hear", {"said": said})
        return {"nodes": answers.results, "missing": to_builtins(answers.missing)}

    # Nodes

    async def _overviews(self, action: str, arguments: Arguments) -> Result:
        answers = await self.desk.everywhere("overview", {})
        return {
            "node": self.desk.name,
            "nodes": list(answers.results.values()),
            "missing": to_builtins(answers.missing),
        }

    async def _activity(self, action: str, arguments: Arguments) -> Result:
        """The clients with most of ``sort``, at all nodes."""
        chosen = {name: arguments[name] for name in ("sort", "limit") if arguments.get(name)}
        answers = await self.desk.everywhere(action, chosen, arguments.get("node"))
        found = self._joined(answers, "clients")
        key = chosen.get("sort", "messages_in")
        found["clients"] = sorted(found["clients"], key=itemgetter(key), reverse=True)[: limit_of(arguments)]
        found["seconds"] = {node: result["seconds"] for node, result in answers.results.items()}
        return found

    async def _links(self, action: str, arguments: Arguments) -> Result:
        return self._joined(await self.desk.everywhere(action, {}, arguments.get("node")), "links")

    async def _reload(self, action: str, arguments: Arguments) -> Result:
        """``node`` "*": all of them."""
        node = arguments.get("node", "")
        answers = await self.desk.everywhere(action, arguments, None if node == "*" else node or self.desk.name)
        return {"nodes": answers.results, "missing": to_builtins(answers.missing)}

    async def _leave(self, action: str, arguments: Arguments) -> Result:
        return await self._say("leave.begin", arguments.get("node", ""), arguments)

    def _joined(self, answers: Answers, key: str) -> Result:
        entries = [{**one, "node": node} for node, result in answers.results.items() for one in result[key]]
        return {"node": self.desk.name, key: entries, "missing": to_builtins(answers.missing)}


def _client(arguments: Arguments) -> Arguments:
    return {name: arguments.get(name, "") for name in ("client_id", "by")}


def _named(name: str, action: Asked) -> Action:
    """What is asked for by that name: what it reports while it goes on is nothing."""

    async def asked(report: Report, arguments: Arguments) -> Result:
        return await action(name, arguments)

    return asked
