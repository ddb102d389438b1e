"""Answers to ``$SYS.REQ.>``: the broker asks each node, and passes each answer on when it arrives, in nats-server's
JSON.

A request carries options: nats-server's own, and a filter (``server_name``, ``host``, ``cluster``, ``exact_match``,
``tags``, ``domain``). A node that the filter excludes does not answer. Neither does a node that is away, like a server
that is down.

An answer has at most ``nats.max_payload`` bytes. A page of connections that would be longer is shortened, which its
``limit`` shows; any other answer that would be longer is an error.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Any, Final, get_args

import msgspec
from msgspec import Struct

from starlingmq.admin.declared_actions import action
from starlingmq.admin.jetstream_monitor import ACCOUNT, Details
from starlingmq.admin.local_node import LocalNode
from starlingmq.admin.nats_monitor import CONNECTIONS_MAX, NANOSECONDS, Connz, NatsMonitor, Sort, Varz
from starlingmq.admin.node_rpc import NodeRpc, ours
from starlingmq.core.context.ready import SystemRequest
from starlingmq.core.limits.access import PUBLISH, SUBSCRIBE, Grant, ReplyGrant, Rights
from starlingmq.core.session.session import Client
from starlingmq.wire.nats_subjects import subject_of

Json = dict[str, Any]

OF_VARZ: Final = (
    *("start", "mem", "cores", "cpu", "connections", "total_connections", "subscriptions", "slow_consumers"),
    "slow_consumer_stats",
)


JETSTREAM_FLAG: Final = 1  # nats-server's bit for a server with JetStream


def server_info(varz: Varz, seq: int) -> Json:
    """The head of each answer: the server that gives it."""
    cluster = varz.cluster.get("name", "")
    head: Json = {"name": varz.server_name, "host": varz.host, "id": varz.server_id, "ver": varz.version}
    enabled = bool(varz.jetstream)
    head |= {"time": varz.now, "seq": seq, "jetstream": enabled, "flags": JETSTREAM_FLAG * enabled}
    return head | ({"cluster": cluster} if cluster else {})


def statsz(varz: Varz, peers: list[tuple[int, str]], jetstream: Json) -> Json:
    """``peers``: numbers and names of the other connected nodes. ``jetstream``: {} without it."""
    nothing = {"msgs": 0, "bytes": 0}
    counted = {"sent": nothing, "received": nothing, "pending": 0}
    return {
        **{name: getattr(varz, name) for name in OF_VARZ},
        **_traffic(varz),
        "active_accounts": 1,
        "routes": [{"rid": number, "name": name, **counted} for number, name in peers],
        "active_servers": 1 + len(peers),
        **({"jetstream": jetstream} if jetstream else {}),
    }


def account_statz(varz: Varz, monitor: NatsMonitor) -> Json:
    only = {
        "acc": ACCOUNT,
        "name": ACCOUNT,
        "conns": varz.connections,
        "leafnodes": 0,
        "total_conns": varz.connections,
        "num_subscriptions": monitor.subsz().num_subscriptions,
        **_traffic(varz),
        "slow_consumers": varz.slow_consumers,
    }
    return {**at(varz), "account_statz": [only]}


def at(varz: Varz) -> Json:
    return {"server_id": varz.server_id, "now": varz.now}


def _traffic(varz: Varz) -> Json:
    sent, received = {"msgs": varz.out_msgs, "bytes": varz.out_bytes}, {"msgs": varz.in_msgs, "bytes": varz.in_bytes}
    return {"sent": sent, "received": received}


# Permissions of a user

SHOWN_MAX: Final = 100  # subjects of each kind


def user_info(client: Client, now: float) -> Json:
    info: Json = {"user": client.username, "account": ACCOUNT}
    if client.rights is not None:
        info["permissions"] = permissions(client.rights)
    if client.valid_until:
        info["expires"] = int(max(client.valid_until - now, 0.0) * NANOSECONDS)
    return info


def permissions(rights: Rights) -> Json:
    """Rules of this broker are ordered, and the first match decides; nats-server has two lists, of which the denials
    take precedence. So the answer has the subjects that the rules name; where rules overlap, it may differ from what
    they mean."""
    replies = [grant for grant in rights.grants if isinstance(grant, ReplyGrant) and grant.allow]
    told: Json = {"publish": _subjects(rights, PUBLISH), "subscribe": _subjects(rights, SUBSCRIBE)}
    if replies:  # nats-server writes -1 for no limit
        first = replies[0]
        told["responses"] = {"max": first.count or -1, "ttl": int(first.seconds * NANOSECONDS) or -1}
    return told


def _subjects(rights: Rights, action: int) -> Json:
    about = [grant for grant in rights.grants if grant.actions & action]
    allowed = _spelled(grant for grant in about if grant.allow)
    if rights.default:
        allowed.append(">")
    denied = _spelled(grant for grant in about if not grant.allow)
    return {kind: subjects for kind, subjects in (("allow", allowed), ("deny", denied)) if subjects}


def _spelled(grants: Iterable[Grant]) -> list[str]:
    found: dict[str, None] = {}
    for grant in grants:
        for subject in _subject(grant):
            found[subject] = None
        if len(found) >= SHOWN_MAX:
            break
    return list(found)


def _subject(grant: Grant) -> list[str]:
    """``a/#`` is ``a`` and ``a.>``. Empty for a rule that no topic matches, or whose topics have no subject."""
    tokens = ["*" if level is None else _token(level) for level in grant.levels]
    if "" in tokens:
        return []
    fixed = ".".join(tokens)
    if not grant.rest:
        return [fixed]
    return [fixed, f"{fixed}.>"] if fixed else [">"]


def _token(level: bytes) -> str:
    if not level:
        return "/"
    if level in (b"#", b"+"):
        return ""
    return subject_of(level).decode(errors="replace")


log = logging.getLogger("starlingmq.admin")

OPTIONS_MAX: Final = 4096  # bytes
SORTS: Final = frozenset(get_args(Sort))
CLOSED: Final = 1  # nats-server's ``state`` of closed connections, which this broker does not keep


class NatsRequest(Struct, frozen=True):
    """``server``: the id of the only server that shall answer; "" for all. ``options``: JSON."""

    kind: str = ""
    server: str = ""
    options: str = ""


class NatsReply(Struct, frozen=True):
    """``answer``: JSON; "" if this node does not answer."""

    answer: str


class Filter(Struct, frozen=True):
    """The filter options, which every request may have."""

    server_name: str = ""
    host: str = ""
    cluster: str = ""
    exact_match: bool = False
    tags: list[str] | None = None
    domain: str = ""


class ConnzOptions(Struct, frozen=True):
    sort: str = ""
    subscriptions: bool = False
    subscriptions_detail: bool = False
    offset: int = 0
    limit: int = 0
    cid: int = 0
    state: int = 0
    user: str = ""
    acc: str = ""


class JszOptions(Struct, frozen=True):
    accounts: bool = False
    streams: bool = False
    consumer: bool = False
    config: bool = False


def _details(options: bytes) -> Details:
    asked = msgspec.json.decode(options, type=JszOptions) if options else JszOptions()
    return Details(asked.accounts, asked.streams, asked.consumer, asked.config)


class NatsAnswers:
    """``node_rpc`` sends requests to other nodes. It is set after construction."""

    def __init__(self, local_node: LocalNode) -> None:
        self._local_node = local_node
        self._monitor = NatsMonitor(local_node)
        self._seq = 0
        self._asking: set[asyncio.Task[None]] = set()
        self.node_rpc: NodeRpc | None = None

    def stop(self) -> None:
        for task in self._asking:
            task.cancel()

    # Requests of clients of this node

    def take(self, request: SystemRequest) -> None:
        if request.kind == "USER":
            varz = self._monitor.varz()
            answer = self._answer(varz, data=user_info(request.client, self._local_node.driver.clock()))
            self._hand_on(request, answer)
            self._close(request)
            return
        task = asyncio.ensure_future(self._ask(request))
        self._asking.add(task)
        task.add_done_callback(self._asking.discard)

    async def _ask(self, request: SystemRequest) -> None:
        """Ask all nodes at once."""
        assert self.node_rpc is not None
        asked = (self._ask_one(request, name) for _, name in self.node_rpc.members())
        for failed in await asyncio.gather(*asked, return_exceptions=True):
            if isinstance(failed, Exception):
                log.error("internal error in a request for %s", request.kind, exc_info=failed)
        self._close(request)

    async def _ask_one(self, request: SystemRequest, name: str) -> None:
        assert self.node_rpc is not None
        if name == self.node_rpc.name:
            answer = self.answer(request.kind, request.server, request.options)
        else:
            options = request.options[: OPTIONS_MAX + 1].decode(errors="replace")
            asked = NatsRequest(request.kind, request.server, options)
            try:
                answer = (await self.node_rpc.ask(name, "nats.request", asked, NatsReply)).answer.encode()
            except Exception as error:
                if not ours(error):
                    raise
                log.debug("%s did not answer a request for %s: %s", name, request.kind, error)
                return
        if answer:
            self._hand_on(request, answer)

    def _hand_on(self, request: SystemRequest, answer: bytes) -> None:
        driver = self._local_node.driver
        driver.state.nats.system.answer(request, answer, driver.clock())
        driver.request_turn()

    def _close(self, request: SystemRequest) -> None:
        driver = self._local_node.driver
        driver.state.nats.system.close(request, driver.clock())
        driver.request_turn()

    # Answers of this node

    @action("nats.request")
    async def _asked(self, request: NatsRequest) -> NatsReply:
        return NatsReply(self.answer(request.kind, request.server, request.options.encode()).decode())

    def answer(self, kind: str, server: str, options: bytes) -> bytes:
        """The answer; b"" if this node is not meant."""
        varz = self._monitor.varz()
        if server and server != varz.server_id:
            return b""
        try:
            if len(options) > OPTIONS_MAX:
                raise ValueError(f"the options may have at most {OPTIONS_MAX} bytes")
            if options and not _fits(msgspec.json.decode(options, type=Filter), varz):
                return b""
            if kind == "CONNZ":
                return self._connections(varz, options)
            data = self._data(kind, varz, options)
        except (ValueError, RecursionError) as error:  # msgspec raises ValueErrors
            return self._error(varz, 400, str(error))
        answer = msgspec.json.encode(data)
        if len(answer) > self._size_max():
            return self._too_long(varz)
        return answer

    def _data(self, kind: str, varz: Varz, options: bytes) -> Json:
        """The answer with its head. Raises ValueError."""
        head = self._head(varz)
        if kind == "STATSZ":
            return {"server": head, "statsz": statsz(varz, self._peers(), self._monitor.jetstream.statsz())}
        if kind == "IDZ":
            return {name: head[name] for name in ("name", "host", "id")}
        about: dict[str, Callable[[], Any]] = {
            "VARZ": lambda: varz,
            "SUBSZ": self._monitor.subsz,
            "HEALTHZ": self._monitor.healthz,
            "ACCOUNTZ": lambda: {**at(varz), "system_account": "", "accounts": [ACCOUNT]},
            "JSZ": lambda: self._monitor.jsz(_details(options)),
            "STATZ": lambda: account_statz(varz, self._monitor),
        }
        if kind not in about:
            raise ValueError(f"{kind}: unknown request")
        return {"server": head, "data": about[kind]()}

    def _connections(self, varz: Varz, options: bytes) -> bytes:
        asked = msgspec.json.decode(options, type=ConnzOptions) if options else ConnzOptions()
        if asked.offset < 0 or (asked.sort and asked.sort not in SORTS):
            raise ValueError(f"sort must be one of {', '.join(sorted(SORTS))}, and offset 0 or more")
        limit = asked.limit if 0 < asked.limit <= CONNECTIONS_MAX else CONNECTIONS_MAX
        while True:
            page = self._page(asked, limit)
            answer = self._answer(varz, data=page)
            if len(answer) <= self._size_max():
                return answer
            if limit == 1:
                return self._too_long(varz)
            limit = max(min(limit, page.num_connections) // 2, 1)

    def _page(self, asked: ConnzOptions, limit: int) -> Connz:
        sort: Any = asked.sort or "cid"
        subscriptions = asked.subscriptions or asked.subscriptions_detail
        closed = asked.state == CLOSED or asked.acc not in ("", ACCOUNT)
        return self._monitor.connz(sort, asked.offset, limit, subscriptions, asked.cid, asked.user, closed)

    def _answer(self, varz: Varz, **more: Any) -> bytes:
        return msgspec.json.encode({"server": self._head(varz), **more})

    def _error(self, varz: Varz, code: int, why: str) -> bytes:
        return self._answer(varz, error={"code": code, "description": why})

    def _too_long(self, varz: Varz) -> bytes:
        return self._error(varz, 413, "the response is larger than nats.max_payload")

    def _head(self, varz: Varz) -> Json:
        self._seq += 1
        return server_info(varz, self._seq)

    def _size_max(self) -> int:
        return self._local_node.config().nats.max_payload

    def _peers(self) -> list[tuple[int, str]]:
        cluster = self._local_node.cluster
        if cluster is None or cluster.state is None:
            return []
        members = (status for status in cluster.state.status() if status.connected)
        return sorted((status.member.number, status.member.name) for status in members)


def _fits(filter: Filter, varz: Varz) -> bool:
    """Whether the filter includes this server."""
    if filter.tags or filter.domain:  # this server has neither
        return False
    own = (
        (filter.server_name, varz.server_name),
        (filter.host, varz.host),
        (filter.cluster, varz.cluster.get("name", "")),
    )
    if filter.exact_match:
        return all(not wanted or wanted == name for wanted, name in own)
    return all(wanted in name for wanted, name in own)
