"""One broker, assembled: the only module that wires the parts.

``Broker`` (also ``starlingmq.Broker``) embeds it in a program; ``starlingmq serve`` runs it as a process.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypedDict, Unpack

from msgspec.structs import replace

from starlingmq.admin.access_table import AccessTable, refuse_file
from starlingmq.admin.broker_actions import BrokerActions
from starlingmq.admin.local_node import LocalNode
from starlingmq.admin.operator_problem import AdminError
from starlingmq.admin.readiness import readiness
from starlingmq.admin.service import AdminService
from starlingmq.auth.access_control import AccessControl
from starlingmq.auth.automatic_bans import Ban, Kind
from starlingmq.auth.stored_access import StoredAccess
from starlingmq.config.api_section import API_SCHEMES
from starlingmq.config.restart_settings import in_force, needs_restart
from starlingmq.config.settings import (
    Config,
    ConfigError,
    ListenerConfig,
    from_tree,
    refuse_open_listeners,
    wants_events,
)
from starlingmq.core.broker import BrokerState
from starlingmq.core.context.ready import Notice
from starlingmq.hooks import Authenticate, Authorize, Hooks, OnEvent, OnPublish
from starlingmq.log import SparingLog, as_this_node
from starlingmq.net.broker_clock import broker_clock
from starlingmq.net.bulk_urls import bulk_url, parse_bulk_url
from starlingmq.net.control_socket import ControlServer
from starlingmq.net.driver import Driver
from starlingmq.net.listeners.connection_counts import ConnectionCounts
from starlingmq.net.listeners.listener_set import ListenerSet
from starlingmq.net.listeners.listeners import Listener, ListenerSpec, open_listener
from starlingmq.net.listeners.revocation_sweep import end_revoked
from starlingmq.net.memory_watch import MemoryWatch
from starlingmq.node.connection_log import NoticeLog
from starlingmq.node.jetstream_opening import open_jetstream
from starlingmq.node.node_copies import NodeCopies, has_copies
from starlingmq.node.node_state import contracts_in, event_listener, new_state
from starlingmq.node.node_tracing import NodeTracing
from starlingmq.storage.opening import directory_of, open_store

if TYPE_CHECKING:
    from starlingmq.api.listening import HttpSide
    from starlingmq.bridges.bridge_set import BridgeSet
    from starlingmq.migrate.follower import OldBrokerFollower
    from starlingmq.net.bulk_process import BulkProcess
    from starlingmq.net.copies.copy_part import CopyPart
    from starlingmq.net.etcd.etcd_access import EtcdAccess
    from starlingmq.net.peers.cluster_shell import Cluster

log = logging.getLogger("starlingmq")

# at the end of a shutdown, for clients to read their last output and for everything to be closed
LAST_SECONDS: Final = 3.0
LAST_OUTPUT_SECONDS: Final = 0.5  # at least, for clients to read their DISCONNECT
LAME_DUCK_LOOK: Final = 0.1  # seconds between two checks whether all NATS clients are gone


class Sections(TypedDict, total=False):
    """Those of a settings file, as plain dictionaries."""

    node: Mapping[str, Any]
    mqtt: Mapping[str, Any]
    nats: Mapping[str, Any]
    limits: Mapping[str, Any]
    auth: Mapping[str, Any]
    storage: Mapping[str, Any]
    log: Mapping[str, Any]
    cluster: Mapping[str, Any]
    queue_groups: Mapping[str, Any]
    streams: Mapping[str, Any]
    bridges: Iterable[Mapping[str, Any]]
    links: Iterable[Mapping[str, Any]]
    contracts: Iterable[Mapping[str, Any]]
    rules: Iterable[Mapping[str, Any]]
    tracing: Mapping[str, Any]
    alarms: Mapping[str, Any]


def _listeners(given: Iterable[str | Mapping[str, Any]]) -> tuple[ListenerConfig, ...]:
    """Of URLs, and of sections with a url. Raises TypeError, ConfigError."""
    if isinstance(given, str):
        raise TypeError(f"listeners is a list of URLs: write [{given!r}]")
    found: list[ListenerConfig] = []
    for each in given:
        found += [ListenerConfig(url=each)] if isinstance(each, str) else from_tree({"listeners": [each]}).listeners
    return tuple(found)


class Broker:
    """``async with Broker(config) as broker`` serves until the block ends.

    ``listeners`` (URLs, or sections with a url) replaces what the configuration says; the hooks are those of
    ``starlingmq.hooks``. ``sections``, in place of ``config``: those of a settings file as dictionaries, e.g.
    ``mqtt={"max_qos": 1}``; raises ConfigError if they are wrong. ``start`` raises ConfigError or ListenerError, and
    then nothing is left open.
    """

    def __init__(
        self,
        config: Config | None = None,
        *,
        listeners: Iterable[str | Mapping[str, Any]] | None = None,
        authenticate: Authenticate | None = None,
        authorize: Authorize | None = None,
        on_publish: OnPublish | None = None,
        on_event: OnEvent | None = None,
        copy_part: CopyPart | None = None,
        etcd: EtcdAccess | None = None,
        **sections: Unpack[Sections],
    ) -> None:
        if config is not None and sections:
            raise TypeError(f"give a Config, or sections such as {next(iter(sections))}, not both")
        self.config = config or from_tree(dict(sections))
        if listeners is not None:
            self.config = replace(self.config, listeners=_listeners(listeners))
        self._started_with = self.config  # at ``start``; a reload changes ``config`` only
        self._lines = SparingLog(log, self.config.limits.log_rate)
        self.hooks = Hooks(authenticate, authorize, on_publish, on_event, self.config.limits.hook_timeout, self._lines)
        self._access = AccessControl(self.config, self.hooks, self._lines)
        self._table = AccessTable(self._use_access)
        self._memory: MemoryWatch | None = None
        self._listener_set = ListenerSet(())
        self._admission = ConnectionCounts(self.config.limits)
        self._admission.is_banned = self._access.is_banned
        self._admission.report = self._refused
        self._admission.use_pages(self._access.anonymous(self.config), self.config.auth.api.hosts)
        self._closed = asyncio.Event()
        self._one_stop = asyncio.Lock()
        self._driver: Driver | None = None
        self._control: ControlServer | None = None
        self._http: HttpSide | None = None
        self._admin: AdminService | None = None
        self.load: Callable[[], Config] | None = None  # reads the settings again, for ``reload`` by an operator
        self.restart: Callable[[], None] | None = None  # stops, and starts again as a process, for an operator
        self._actions: BrokerActions | None = None
        self._notices: NoticeLog | None = None
        self._cluster: Cluster | None = None
        self._ending: asyncio.Future[None] | None = None
        self._bulk: BulkProcess | None = None
        self._bridges: BridgeSet | None = None
        self._follower: OldBrokerFollower | None = None
        self._tracing = NodeTracing()
        self._revoking: asyncio.Future[None] | None = None
        self._copies = NodeCopies(copy_part)
        self._etcd = etcd  # of a cluster's node, if it was begun before this broker was made

    @property
    def taken_over(self) -> bool:
        """Another node serves the data of this one. It has ended; a new ``Broker`` becomes a follower."""
        return self._copies.taken_over

    @property
    def problem(self) -> str:
        """The reason why it stopped by itself; "" if it was stopped."""
        if self._cluster is None or self._ending is None or self.taken_over:
            return ""
        return self._cluster.problem

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.stop()

    @property
    def addresses(self) -> list[str]:
        """The URLs of the listeners, with the bound ports."""
        clients = [listener.address for listener in self._listener_set.listeners]
        return clients if self._http is None else clients + self._http.addresses

    def address(self, scheme: str = "mqtt") -> str:
        """The first bound URL of a scheme. Raises LookupError if there is none."""
        for address in self.addresses:
            if address.startswith(scheme + "://"):
                return address
        raise LookupError(f"this broker has no {scheme} listener")

    @property
    def read_at(self) -> str:
        """Address of the bulk process, host:port; "" if there is none."""
        return "" if self._bulk is None else self._bulk.address

    @property
    def read_by(self) -> int:
        """The id of the bulk process; 0: there is none, or it is being restarted."""
        return 0 if self._bulk is None else self._bulk.pid

    @property
    def state(self) -> BrokerState:
        """The core, to inspect its counters and sessions. Only clients may change it."""
        assert self._driver is not None, "the broker has not been started"
        return self._driver.state

    async def start(self) -> None:
        """Open the listeners and serve from now on. A broker is started once. Raises TakenOver."""
        if self._driver is not None or self._copies.process is not None:
            raise RuntimeError("this broker has already been started once; create another one")
        self._started_with = self.config
        if self._copies.part is not None or not has_copies(self.config):
            await self._start()
            return
        try:
            await self._copies.start(self.config, self._open_hosted, self._start, self._end, self._etcd)
        except BaseException:
            await self.stop()
            raise

    def _open_hosted(self, config: Config, part: CopyPart) -> Broker:
        """A broker for the data of a lost node."""
        hooks = self.hooks
        return Broker(
            config,
            authenticate=hooks.authenticate,
            authorize=hooks.authorize,
            on_publish=hooks.on_publish,
            on_event=hooks.on_event,
            copy_part=part,
        )

    async def _start(self) -> None:
        http = [each for each in self.config.listeners if each.url.partition("://")[0] in API_SCHEMES]
        listener_set = self._listener_set = ListenerSet(each for each in self.config.listeners if each not in http)
        refuse_open_listeners(self.config, self.hooks.authenticate is not None)
        warm = self._access.start()
        if http:
            _load_http()
        if self.config.cluster.enabled:  # a node that cannot serve must not join the cluster
            await listener_set.refuse_taken()
        try:
            self._driver = await self._make_driver()
            self._access.attach(self._driver.state)
            self._open_table(self._driver)
            actions = self._actions = BrokerActions(
                self._driver, self.config.node.name, self._access, self._readable_nodes, self._cluster, listener_set
            )
            admin = self._admin = self._open_admin(self._driver, actions)
            open_jetstream(self._driver, actions.streams, None if self._cluster is None else self._cluster.state)
            self._control = await actions.open_control(admin.actions)
            if http:
                await self._open_http(admin)
            self._tracing.use(self._tracing.make(self.config, self._driver), self.config)
            if self._cluster is not None:
                await self._copies.join(self._cluster.state)
                await self._cluster.join()
                if self._table.problem:
                    raise ConfigError(self._table.problem)
            self._memory = MemoryWatch(self._driver, lambda: self.config.limits.memory)
            self._memory.look()
            if warm is not None:
                await warm  # otherwise the first logins would wait for it
            if self._cluster is None:
                self._use_bridges(self.config)  # their sessions take what the first clients publish
            await listener_set.open(self._open_listener)
            if self.config.streams.listen:
                await self._open_bulk()
            if self._cluster is not None:
                read_at = () if self._bulk is None else (bulk_url(self._bulk.address, self.config.node.name),)
                self._cluster.open_to_clients(listener_set.listeners, read_at)
                self._use_bridges(self.config)
            admin.local_node.serving = True
        except BaseException:
            await self.stop()
            raise

    def _use_bridges(self, config: Config) -> None:
        """Carry messages to other brokers and back as these settings say."""
        if self._bridges is None:
            if not config.bridges and not config.links and not config.rules:
                return
            from starlingmq.bridges.bridge_set import BridgeSet

            assert self._driver is not None and self._admin is not None
            self._bridges = BridgeSet(self._driver, self._serving_nodes, self._admin.links.paused())
        self._bridges.use(config)
        followed = next((each for each in config.bridges if each.follow.database), None)
        if followed is None and self._follower is not None:
            self._follower.end()
        elif followed is not None and self._follower is None and self._cluster is None:
            from starlingmq.migrate.follower import OldBrokerFollower

            assert self._driver is not None
            self._follower = OldBrokerFollower(self._driver, self._bridges, followed)

    def _serving_nodes(self) -> tuple[int, list[int]]:
        """The own number and those of all nodes that serve clients; without a cluster (0, [0])."""
        if self._cluster is None:
            return 0, [0]
        state = self._cluster.state
        assert state is not None
        directory = state.node_directory
        own = [state.number] if state.serving and not directory.draining else []
        return state.number, own + directory.welcoming()

    async def _open_bulk(self) -> None:
        """Start the bulk process."""
        assert self._driver is not None
        if directory_of(self._driver.store) is None:
            raise ConfigError(
                "streams.listen: there are no streams to serve; set node.data_dir, and a storage.engine that persists"
            )
        from starlingmq.net.bulk_process import BulkProcess

        self._bulk = BulkProcess(self.config)
        await self._bulk.start()

    def _readable_nodes(self) -> list[tuple[str, str, bool]]:
        """Return name and address of the nodes that serve streams; True and no address for a member that is not
        connected.
        """
        found = [(self.config.node.name, self.read_at, False)]
        if self._cluster is None:
            return found
        addresses = [parse_bulk_url(url) for url in self._cluster.listeners_elsewhere()]
        found += [(*local_node, False) for local_node in addresses if local_node is not None]
        return found + [(name, "", True) for name in self._cluster.members_away()]

    async def _open_listener(self, spec: ListenerSpec) -> Listener:
        assert self._driver is not None
        listener = await open_listener(
            asyncio.get_running_loop(),
            spec,
            self._driver,
            write_buffer=self.config.limits.write_buffer,
            handshake_timeout=self.config.mqtt.connect_timeout,
            admission=self._admission,
        )
        if spec.tls is not None and spec.tls.require_client_cert:
            self.state.nats.info.verifying |= {listener.address}
        return listener

    def _refused(self, notice: Notice) -> None:
        """A connection was closed before there was a client."""
        self.state.ctx.counters.error(notice.reason)
        if self._notices is not None:
            self._notices.add(notice)

    async def _make_driver(self) -> Driver:
        clock = broker_clock()
        config = self.config
        state = new_state(config, self.hooks, self._access, clock())
        later, why = asyncio.get_running_loop().call_later, self._access.why_refused
        notices = self._notices = NoticeLog(config.limits.log_rate, clock, later, why)
        copied = self._copies.part
        if copied is None:
            store = open_store(config, state, clock)
        else:
            await copied.prepare(config)
            store = await copied.open(lambda: open_store(config, state, clock))
        if not config.cluster.enabled:
            return Driver(state, store, self.hooks, event_listener(config, self.hooks, notices), notices.add, clock)
        try:
            from starlingmq.net.etcd.etcd_access import EtcdAccess
            from starlingmq.net.peers.cluster_shell import Cluster  # gRPC, which only a cluster needs

            if copied is None:
                cluster = Cluster(config, clock, self._etcd or EtcdAccess(config))
            else:
                cluster = Cluster(config, clock, copied.etcd, shared=True)
            part = await cluster.open(state, state.peers.facts)
        except BaseException:
            await store.close()
            raise
        self._cluster = cluster
        self._copies.serve(cluster)
        told = event_listener(config, self.hooks, notices)
        # the event loop calls a driver outside of all tasks
        carry = as_this_node(cluster.carry)
        driver = Driver(state, store, self.hooks, told, notices.add, clock, part, carry)
        cluster.request_turn = driver.request_turn
        cluster.ended = self._end
        return driver

    def _end(self) -> None:
        """This node is not a member of its cluster any more, or its data is served elsewhere: stop, unless that has
        begun."""
        self._ending = asyncio.ensure_future(self.stop())

    def _open_admin(self, driver: Driver, actions: BrokerActions) -> AdminService:
        local_node = LocalNode(
            self.config.node.name,
            driver,
            lambda: self.config,
            lambda: self._listener_set.listeners,
            self._access.bans,
            self.ban,
            self._access,
            lambda: self._access.hashing,
            self._reload_again,
            self.reload,
            self._cluster,
            actions.drain,
            lambda: self._tracing.current,
            lambda: in_force(self._started_with, self.config),
            self._table,
            self.restart,
            bridges=lambda: self._bridges,
        )
        if self._notices is not None:
            local_node.last = self._notices.last
        actions.unready = lambda: readiness(local_node).reasons
        admin = AdminService(local_node, actions.by_name, actions.streams, actions.log)
        admin.start()
        return admin

    async def _open_http(self, admin: AdminService) -> None:
        from starlingmq.api.listening import HttpSide
        from starlingmq.api.served import Served

        self._http = HttpSide(Served(admin.local_node, admin))
        await self._http.open()

    def _open_table(self, driver: Driver) -> None:
        """Of the users and rules that operators make. Raises ConfigError."""
        store = directory_of(driver.store)
        if self._cluster is not None:
            if store is not None:
                refuse_file(store.data_dir.path)
            self._table.known = None
            self._table.write = self._cluster.write_access
            self._cluster.on_access = self._table.adopt
        elif store is not None:
            self._table.open_file(store.data_dir.path)

    def _use_access(self, table: StoredAccess) -> None:
        """Raises ConfigError, and then nothing has changed."""
        assert self._driver is not None
        self._access.use_stored(table)
        self._admission.use_pages(self._access.anonymous(self.config), self.config.auth.api.hosts)
        if self._http is not None:
            self._http.use(self._access.hashing)
        self._driver.request_turn()

    def ban(self, kind: Kind, name: str, seconds: float, reason: str) -> Ban:
        """Ban an address, a user or a client for a while. Present connections stay."""
        return self._access.ban(kind, name, seconds, reason)

    def reload(self, config: Config) -> None:
        """Apply what can change while serving: ``mqtt``, ``nats``, ``queue_groups``, ``limits``, ``auth`` with its
        files, ``streams.define``, ``tracing``, ``alarms``, ``log`` and certificates. Raises ConfigError, and then
        nothing has changed."""
        assert self._driver is not None and self._actions is not None, "the broker has not been started"
        hashing = self._access.hashing_for(config)
        loaded = [(listener, listener.load_tls()) for listener in self._listener_set.listeners]
        access = None if self._http is None else self._http.prepare(config, hashing)
        chain = self._access.make_chain(config, hashing)
        verify = self._access.verifier(config)
        tracing = self._tracing.make(config, self._driver)
        contracts = contracts_in(config)
        self._actions.declare_streams(config)
        self._tracing.use(tracing, config)
        self.state.nats.keys.verify = verify
        self.state.audit.asked = wants_events(config)
        self.state.router.use_contracts(contracts)
        self.state.configure(config.mqtt, config.limits, config.nats, config.queue_groups)
        self._lines.rate = config.limits.log_rate
        self._access.reload(config, chain, hashing)
        self._admission.use(config.limits)
        self._admission.use_pages(self._access.anonymous(config), config.auth.api.hosts)
        for listener, tls in loaded:
            listener.use_tls(tls)
        if self._revoking is not None:
            self._revoking.cancel()
        revoked = {listener.address: tls.revoked for listener, tls in loaded if tls is not None and tls.revoked}
        if revoked:
            self._revoking = asyncio.ensure_future(end_revoked(self._driver, revoked, config.mqtt.connect_timeout))
        if self._http is not None and access is not None:
            self._http.reload(config, access)
        if self._notices is not None:
            self._notices.rate = config.limits.log_rate
            self._driver.on_event = event_listener(config, self.hooks, self._notices)
            self.state.ctx.use_events(self._driver.on_event is not None)
        self._use_bridges(config)
        self.config = config
        if self._admin is not None:
            self._admin.alarms.reloaded()
        self._driver.request_turn()

    def _reload_again(self) -> list[str]:
        """Reload on behalf of an operator. Returns the settings that take effect only after a restart. Raises
        AdminError."""
        if self.load is None:
            raise AdminError(409, "this broker is embedded in a program, which must reload its settings itself")
        self.reload(self.load())
        return self.restart_needed()

    def restart_needed(self) -> list[str]:
        """The settings that differ from those in force, and take effect only after a restart."""
        return needs_restart(self._started_with, self.config)

    async def lame_duck(self) -> None:
        """Stop listening, close NATS clients one after the other over ``nats.lame_duck_duration``, then ``stop``. A
        member of a cluster sends its MQTT clients to other nodes meanwhile."""
        if self._driver is not None:
            await self._listener_set.close()
            nats, seconds, now = self.state.nats, self.config.nats.lame_duck_duration, self._driver.clock()
            log.info("lame duck mode: closing %d NATS clients within %g s", len(nats.clients), seconds)
            if self._cluster is not None and self._cluster.state is not None:
                self._cluster.state.begin_drain(now)
            else:
                nats.leaving.begin(now, seconds)
            self._driver.request_turn()
            while nats.clients and not self._closed.is_set():
                await asyncio.sleep(LAME_DUCK_LOOK)
        await self.stop()

    async def stop(self) -> None:
        """Stop listening, disconnect the clients, hand their sessions over to other nodes; then end.

        It takes at most ``node.shutdown_timeout``; unfinished work is kept for the next start. May be called again.
        """
        async with self._one_stop:
            await self._stop()

    async def stop_at_once(self) -> None:
        """The same without handing anything over: another node serves the data of this one."""
        self._copies.taken_over = True
        await self.stop()

    async def _stop(self) -> None:
        if self._closed.is_set():
            return
        seconds = self.config.node.shutdown_timeout
        ends = asyncio.get_running_loop().time() + seconds
        if self._admin is not None:
            self._admin.local_node.serving = False
        self._copies.stopping()
        if self._cluster is not None:
            self._cluster.stopping()
        if self._follower is not None:
            await self._follower.stop()
        if self._bridges is not None:
            await self._bridges.stop()
        await self._listener_set.close()
        self._admission.descriptors.close()
        if self._revoking is not None:
            self._revoking.cancel()
        if self._cluster is not None and not self.taken_over:
            await self._cluster.hand_over(seconds - min(seconds / 2, LAST_SECONDS))
        await asyncio.gather(self._stop_bulk(), self._stop_admin(), self._tracing.close())
        driver = self._driver
        if driver is not None:
            left = ends - asyncio.get_running_loop().time()
            await driver.stop(min(seconds, max(left, LAST_OUTPUT_SECONDS), 2.0))
            self._copies.left()
            if self._cluster is not None:
                await self._cluster.close()
            await driver.store.close()
            driver.end()
        await self._copies.end()
        if self._memory is not None:
            self._memory.stop()
        await self._access.close()
        if self._notices is not None:
            self._notices.flush()
        self._listener_set.listeners.clear()
        self._closed.set()

    async def _stop_bulk(self) -> None:
        if self._bulk is not None:
            await self._bulk.stop()

    async def _stop_admin(self) -> None:
        if self._control is not None:
            await self._control.stop()
        if self._http is not None:
            await self._http.close()
        if self._admin is not None:
            await self._admin.stop()

    async def wait_closed(self) -> None:
        await self._closed.wait()


def _load_http() -> None:
    """Only HTTP listeners need it, and it takes most of a second, so it is done before clients wait."""
    try:
        importlib.import_module("starlingmq.api.listening")
        importlib.import_module("starlingmq.api.http_app").routed()
    except ImportError as error:
        raise ConfigError(f"listeners: http:// needs {error.name}; run pip install '.[http]' in the sources") from None
