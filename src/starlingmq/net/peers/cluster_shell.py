"""The shell around ``cluster.cluster_state``: etcd, the streams to other nodes, and the operator requests of a member.

Started before the listeners for clients, so that no client connects to a node that cannot serve yet.
"""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from starlingmq._version import __version__
from starlingmq.cluster.cluster_state import ClusterReady, ClusterState
from starlingmq.cluster.copies.copy_registry import CopyRegistry
from starlingmq.cluster.etcd.etcd_requests import Answer, Get, Txn, TxnAnswer
from starlingmq.cluster.etcd.shared_value import OVERTAKEN, UNKNOWN, SharedValue
from starlingmq.cluster.links.peer_frames import Envelope
from starlingmq.cluster.membership.members import LATER
from starlingmq.cluster.view.operator_rpc import Called
from starlingmq.config.cluster_section import split_address
from starlingmq.config.settings import Config
from starlingmq.core.broker import BrokerState
from starlingmq.net.etcd.etcd_access import EtcdAccess
from starlingmq.net.etcd.etcd_client import EtcdClient
from starlingmq.net.etcd.etcd_server import EtcdServer
from starlingmq.net.listeners.listeners import Listener
from starlingmq.net.peers.peer_server import PeerServer

if TYPE_CHECKING:
    from starlingmq.net.copies.copy_process import CopyProcess

log = logging.getLogger("starlingmq")

ASK_AGAIN: Final = 0.3  # seconds
STILL_WAITING: Final = 5.0  # seconds between the log lines of a starting node that say what it waits for
# added to a question's deadline: its outcome arrives within this time, unless the node is stuck
GRACE_SECONDS: Final = 1.0


COPIES_TAG: Final = "copies of this node"
COPIES_AGAIN: Final = 0.5  # seconds after a failure


class ClusterError(Exception):
    """This node is not, or no longer, a member of its cluster; one line."""


class Cluster:
    """``clock`` is the driver's; ``request_turn`` requests a turn; ``ended`` is called once, when this node is no
    longer a member. ``etcd``: that of the process, which the cluster starts and stops, unless it is ``shared`` with
    other brokers."""

    def __init__(self, config: Config, clock: Callable[[], float], etcd: EtcdAccess, shared: bool = False) -> None:
        settings = config.cluster
        self.config = config
        self.clock = clock
        self.name = config.node.name
        self.state: ClusterState | None = None
        self.request_turn: Callable[[], None] = lambda: None
        self.ended: Callable[[], None] = lambda: None
        self.on_question: Callable[[bytes], Awaitable[bytes]] = _nobody_answers
        self.peers = PeerServer(
            settings,
            self.name,
            self._on_envelope,
            self._on_connected,
            self._on_disconnected,
            self._on_gone,
            random.random,
            secrets.token_bytes,
        )
        self.etcd = etcd
        self._owns_etcd = not shared
        self.copies: CopyProcess | None = None  # of this process; None: nodes store no copies
        self.on_left: Callable[[float], Awaitable[None]] | None = None  # called with the seconds that it may take
        self.client: EtcdClient | None = None
        self.access = SharedValue(f"/starlingmq/{settings.name}/access".encode())
        self.on_access: Callable[[bytes], None] = lambda document: None
        """Called with the users and rules that operators made, once they are known and when they have changed."""
        self._told: bytes | None = None  # the document that it was called with last
        self._writing: asyncio.Future[str] | None = None
        self._has_copies = False  # according to etcd
        self._introduced = 0  # the incarnation that the peers know; 0: none yet
        self._changed = asyncio.Event()  # a state that a task may wait for
        self._closing = False
        self._leaving = False
        self._ended = False
        self._asked: dict[int, asyncio.Future[tuple[bytes, str]]] = {}  # by the number of the question
        self._answering: set[asyncio.Task[None]] = set()

    # Start and stop

    async def open(self, broker: BrokerState, facts: dict[bytes, bytes]) -> ClusterState:
        """Listens for other nodes. Raises ListenError, ConfigError."""
        await self.peers.start()
        self.state = ClusterState(
            broker,
            self.config.cluster,
            self.name,
            self.peers.address,
            facts,
            self.clock(),
            __version__,
            copied=not self._owns_etcd,
        )
        return self.state

    async def join(self) -> None:
        """Joins the cluster, and waits until this node serves. Raises EtcdServerError, ClusterError."""
        assert self.state is not None
        if self._owns_etcd:
            await self.etcd.start()
        if self.server is not None:
            self.server.on_removed = self._changed.set
        self.client = self.etcd.client(self._on_answer)
        await self.client.start()
        if self._owns_etcd:  # otherwise the node runs with copies
            self._ask_for_copies()
        self.access.start(self.clock())
        self._carry_access()
        self.state.start(self.clock())
        self.request_turn()
        loop = asyncio.get_running_loop()
        logging_at = loop.time() + STILL_WAITING
        while not self.state.serving or not self.access.known or not self.state.streams.is_ready():
            if self.state.left:
                raise ClusterError(f"this node cannot join the cluster: {self.state.members.problem}")
            self._refuse_without_copies()
            if self.server is not None and self.server.removed:
                raise ClusterError(
                    f"this node was removed from its cluster: delete {self.etcd.directory()}, which is "
                    "obsolete, and set cluster.etcd.join to running members, so that it joins as a new "
                    "node"
                )
            self._changed.clear()
            try:
                async with asyncio.timeout_at(logging_at):
                    await self._changed.wait()
            except TimeoutError:
                log.warning("not serving yet: %s", self.waits_for())
                logging_at = loop.time() + STILL_WAITING
        self._refuse_without_copies()

    def _ask_for_copies(self) -> None:
        assert self.client is not None
        if self._closing:
            return
        self.client.submit(Txn(COPIES_TAG, (), (Get(CopyRegistry(self.config.cluster.name).key(self.name)),)))

    def _refuse_without_copies(self) -> None:
        if self._has_copies:
            raise ClusterError(
                f"etcd lists copies of the data of {self.name}, and this data directory is not one of them: it is new, "
                "or was replaced. Set cluster.copies as on the other nodes, so that this node gets its data back"
            )

    def listeners_elsewhere(self) -> list[str]:
        """The client addresses that the connected nodes have announced."""
        assert self.state is not None
        return [url for urls in self.state.node_directory.reachable_at().values() for url in urls]

    def members_away(self) -> list[str]:
        """Names of the registered members that this node does not hear."""
        assert self.state is not None
        told = self.state.node_directory.reachable_at()
        members = [status.member for status in self.state.status()]
        return [member.name for member in members if member.registered and member.number not in told]

    def open_to_clients(self, listeners: Iterable[Listener], urls: Iterable[str] = ()) -> None:
        """Announces this node's client addresses, and ``urls``, to the other nodes with the next heartbeat."""
        assert self.state is not None
        host, _ = split_address(self.peers.address, "cluster.advertise")
        own = [url for listener in listeners if (url := listener.advertised(host))]
        self.state.node_directory.open_own([*own, *urls])
        self.request_turn()

    async def hand_over(self, seconds: float) -> None:
        """Before the shutdown: sends the clients to other nodes, and hands their sessions over. Ends when that is done,
        when no node can take them, or when the time is over; sessions that are left stay on disk."""
        state = self.state
        if state is None or state.quorum is None or state.left or seconds <= 0:
            return
        until = self.clock() + seconds
        state.begin_drain(self.clock(), seconds)
        self.request_turn()
        done = await self.until(lambda: state.drain.done, seconds)
        left = state.drain.sessions_left + state.drain.clients_left
        if left and not state.node_directory.welcoming():
            log.log(
                logging.INFO if self.config.cluster.one_machine else logging.WARNING,
                "no other node of the cluster accepts clients any more, so the %d sessions of this node stay on its "
                "disk with their messages; to go on, start the nodes again, this one among them: they serve once a "
                "majority is connected",
                left,
            )
        elif not done:
            log.warning(
                "node.shutdown_timeout expired with %s sessions and clients not handed over; sessions are kept on disk",
                left,
            )
        await self.until(state.flushed, until - self.clock())

    def stopping(self) -> None:
        """From now on, lost connections are not logged as warnings: nodes are often stopped together."""
        self.peers.quiet()
        if self.server is not None:
            self.server.quiet()

    async def close(self) -> None:
        """Closes everything. The node stays registered, since it may return."""
        self._closing = True
        for task in self._answering:
            task.cancel()
        await self.peers.close()
        if self.client is not None:
            await self.client.close()
        if self._owns_etcd:
            await self.etcd.stop()

    @property
    def server(self) -> EtcdServer | None:
        """The node's own etcd."""
        return self.etcd.server

    @property
    def endpoints(self) -> list[str]:
        """Of etcd."""
        return self.etcd.endpoints

    @property
    def problem(self) -> str:
        """Why this node is no longer a member, if it did not leave by itself."""
        state = self.state
        return state.members.problem if state is not None and state.members.state in ("forgotten", "replaced") else ""

    def names(self) -> dict[int, str]:
        """The names of all members, by number."""
        state = self.state
        assert state is not None
        return {state.number: self.name} | {status.member.number: status.member.name for status in state.status()}

    def waits_for(self) -> str:
        """The reason why this node does not serve yet, for the log."""
        state = self.state
        assert state is not None
        if state.members.problem:
            return state.members.problem
        if state.number == 0:
            return "etcd has not answered yet (a majority of its members must run)"
        members = state.status()
        away = [status.member.name for status in members if not status.connected]
        if away:
            return f"no connection to {', '.join(away)} (a majority of {len(members) + 1} nodes must be connected)"
        if state.members.state != "registered":
            return "not all other nodes know this node yet"
        behind = [status.member.name for status in members if status.behind]
        if behind:
            return f"the routes of {', '.join(behind)} are still being received"
        if not state.shares.is_listed():
            return "the leader of the cluster has not given it shares of the client ids yet"
        if state.shares.lacking():
            return f"the owners of client ids in {state.shares.lacking()} shares are still being received"
        if not state.serving:
            return "it waits for the other nodes that are online"
        if not state.streams.is_ready():
            return "the streams of JetStream are still being read from etcd"
        return "the users and rules that operators made are still being read from etcd"

    # Users and rules that operators made

    async def write_access(self, document: bytes) -> str | None:
        """Replace the one that is known. Returns "", or one line that says why not; None: another node was faster. One
        at a time."""
        if refusal := self.access.propose(document):
            return refusal
        self._writing = asyncio.get_running_loop().create_future()
        self._carry_access()
        try:
            async with asyncio.timeout(self.config.cluster.etcd.request_timeout + GRACE_SECONDS):
                outcome = await self._writing
        except TimeoutError:
            return UNKNOWN
        return None if outcome == OVERTAKEN else outcome

    def _carry_access(self) -> None:
        if self.client is None or self._closing:
            return
        for request in self.access.take_requests():
            self.client.submit(request)
        if self.access.known and self.access.value != self._told:
            self._told = self.access.value
            self.on_access(self._told)
            self._changed.set()
        outcome = self.access.take_outcome()
        if outcome is not None and self._writing is not None and not self._writing.done():
            self._writing.set_result(outcome)
        if wake_at := self.access.wake_at():
            asyncio.get_running_loop().call_later(max(0.0, wake_at - self.clock()), self._look_at_access)

    def _look_at_access(self) -> None:
        self.access.tick(self.clock())
        self._carry_access()

    # Operator requests to other nodes

    async def ask(self, number: int, question: bytes, seconds: float) -> tuple[bytes, str]:
        """The answer of that node, or b"" and the reason why there is none."""
        state = self.state
        assert state is not None
        asked = state.operator_rpc.ask(number, question, self.clock(), seconds)
        future: asyncio.Future[tuple[bytes, str]] = asyncio.get_running_loop().create_future()
        self._asked[asked] = future
        self.request_turn()
        try:
            async with asyncio.timeout(seconds + GRACE_SECONDS):
                return await future
        except TimeoutError:
            return b"", "this node is overloaded or stopping"
        finally:
            del self._asked[asked]

    async def _answer(self, called: Called) -> None:
        state = self.state
        assert state is not None
        state.operator_rpc.answer(called, await self.on_question(called.question))
        self.request_turn()

    # Events

    def _on_envelope(self, envelope: Envelope) -> None:
        assert self.state is not None
        self.state.received(envelope, self.clock())
        self.request_turn()

    def _on_connected(self, number: int) -> None:
        assert self.state is not None
        self.state.connected(number, self.clock())
        self.request_turn()

    def _on_disconnected(self, number: int) -> None:
        assert self.state is not None
        self.state.disconnected(number, self.clock())
        self.request_turn()

    def _on_gone(self, number: int, incarnation: int) -> None:
        assert self.state is not None
        self.state.process_gone(number, incarnation, self.clock())
        self.request_turn()

    def _on_answer(self, answer: Answer) -> None:
        assert self.state is not None
        if isinstance(answer, TxnAnswer) and answer.tag == COPIES_TAG:
            if answer.error:
                asyncio.get_running_loop().call_later(COPIES_AGAIN, self._ask_for_copies)
            else:
                self._has_copies = bool(answer.found[-1])
            self._changed.set()
            return
        self.access.answered(answer, self.clock())
        self._carry_access()
        self.state.answered(answer, self.clock())
        if not self.state.streams.is_ready():
            self._changed.set()
        self.request_turn()

    # Output

    def carry(self, ready: ClusterReady) -> None:
        """Carries out the output of a turn."""
        state, client = self.state, self.client
        if client is None or state is None or self._closing:
            return
        for request in ready.requests:
            client.submit(request)
        if ready.peers is not None:
            me = state.members.me
            if me is not None and self._introduced != me.incarnation:
                self._introduced = me.incarnation
                self.peers.introduce(me.number, me.incarnation)
            if self._introduced:
                self.peers.set_peers(ready.peers)
        for hop, envelope in ready.now:
            self.peers.send(hop, envelope)
        self.peers.flush()
        for outcome in ready.outcomes:
            future = self._asked.get(outcome.number)
            if future is not None and not future.done():
                future.set_result((outcome.answer, outcome.problem))
        for called in ready.called:
            task = asyncio.ensure_future(self._answer(called))
            self._answering.add(task)
            task.add_done_callback(self._answering.discard)
        for notice in ready.notices:
            log.warning("%s", notice)
        for news in ready.news:
            log.info("%s", news)
        if state.drain.active or ready.notices or ready.news or ready.requests or ready.peers is not None:
            self._changed.set()
        if state.left:
            self._changed.set()
            if not self._leaving:
                self._end()

    # Membership

    async def leave(self, seconds: float) -> bool:
        """Leaves the cluster for good. Returns whether that was done in time; if not, it continues afterwards."""
        state = self.state
        assert state is not None
        self._leaving = True
        if self.copies is not None:
            self.copies.is_leaving = True
        if why := await self.forget_streams(self.name):
            log.warning("the registry still has the streams of this node, until another one forgets it: %s", why)
        state.leave(self.clock())
        self.request_turn()
        if not await self.until(lambda: state.left, seconds):
            self._leaving = False
            return False
        if self.on_left is not None:
            await self.on_left(seconds)
        if self.server is not None and (self._owns_etcd or self.copies is not None):
            await self.server.leave()  # otherwise it is that of the node in whose process this one is hosted
        self._end()
        return True

    async def forget(self, name: str, force: bool, seconds: float) -> str:
        """Removes a node that will not return. Returns "" or the reason for a refusal."""
        state = self.state
        assert state is not None
        until = self.clock() + seconds
        while refusal := state.forget(name, force, self.clock()):
            if not refusal.endswith(LATER) or self.clock() > until:
                return refusal
            await asyncio.sleep(ASK_AGAIN)
        self.request_turn()

        def gone() -> bool:
            return all(member.name != name for member in (*state.members.membership.members, *state.members.joining))

        if not await self.until(gone, seconds):
            return f"{name} was not forgotten: {state.members.problem or 'etcd has not confirmed it'}"
        await self.forget_server(name)
        return ""

    async def forget_streams(self, home: str) -> str:
        """Of JetStream. Returns "" or why etcd still has them."""
        state = self.state
        assert state is not None
        if not state.streams.at_home(home):
            return ""
        done: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        state.streams.forget_home(home, lambda why: None if done.done() else done.set_result(why))
        self.request_turn()
        try:
            async with asyncio.timeout(self.config.cluster.etcd.request_timeout + GRACE_SECONDS):
                return await done
        except TimeoutError:
            return UNKNOWN

    async def forget_server(self, name: str) -> None:
        """Removes the etcd member of a node that was removed."""
        if self.server is not None:
            await self.server.forget(name)

    def _end(self) -> None:
        if not self._ended:
            self._ended = True
            self.ended()

    async def until(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Waits for the condition. Returns whether it was met in time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(max(seconds, 0.0)):
                await self._until(condition)
        return condition()

    async def _until(self, condition: Callable[[], bool]) -> None:
        await asyncio.sleep(0)  # for a turn that was requested
        while not condition():
            self._changed.clear()
            await self._changed.wait()


async def _nobody_answers(question: bytes) -> bytes:
    return b'{"error":"this node answers no operators","status":503}'
