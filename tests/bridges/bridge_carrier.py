"""The part of ``bridges.bridge`` for a world: it moves bytes between a relay and its two brokers, and can die."""

from __future__ import annotations

from collections.abc import Callable

from tests.bridges.bridged_sites import FULL, Site, Wire

from starlingmq.bridges.bridge_relay import AGAIN, RUNNING, BridgeCounts, BridgeRelay, Leg, NearSession
from starlingmq.bridges.bridge_sessions import far_options, near_options, near_session, site_in
from starlingmq.bridges.topic_maps import TopicMap
from starlingmq.client.options import ConnectOptions
from starlingmq.client.state import ClientState
from starlingmq.config.bridges_section import BridgeConfig
from starlingmq.config.links_section import LinkConfig
from starlingmq.core.publish.bridges import session_of
from starlingmq.core.session.session import BRIDGE_LISTENER
from starlingmq.wire.mqtt import decode_publish
from starlingmq.wire.properties import USER_PROPERTY, decode_property_bytes
from starlingmq.wire.reasons import Reason

WAITING_MAX = 200_000  # bytes that a relay of these small worlds may keep


class Carrier:
    """One bridge. ``sent``: by payload the number of the last connection on which it was sent to the far broker at QoS
    1 or 2; a message that is sent again must say so."""

    def __init__(self, config: BridgeConfig, near: Site, far: Site, note: Callable[..., None]) -> None:
        self.note = note
        self.config = config
        self.near_site = near
        self.far_site = far
        self.counts = BridgeCounts()
        self.clean = False
        self.unsure = True
        self.relay: BridgeRelay | None = None
        self.near: Wire | None = None
        self.far: Wire | None = None
        self.attempts = 0
        self.ran = 0  # attempts that came to RUNNING
        self.running = False
        self.problems: list[str] = []  # the last ones
        self.far_lost = False  # and the relay has not run since
        self.unlucky = False  # the relay could not know it, because a CONNECT that began a new session had no answer
        self.cut_short = False  # PUBRELs for a lost far session may go to its successor, which does not know them
        self.answered: set[int] = set()  # ids of PUBRELs for a lost far session, which this attempt answers
        self.sent: dict[bytes, int] = {}
        self.unmarked: list[str] = []

    @property
    def far_id(self) -> str:
        options = far_options(self.config, self.near_site.name, None, False, True, 0, 30.0)
        return options.client_id

    @property
    def near_id(self) -> str:
        return session_of(self.config)

    def connect(self) -> None:
        if self.relay is not None:
            return
        self.attempts += 1
        self.running = False
        self.note(self.config.name, "connects", "with a clean start" * self.clean)
        options = far_options(
            self.config,
            self.near_site.name,
            None,
            clean=self.clean,
            says_bridge=True,
            max_packet=self.near_site.state.ctx.max_packet,
            timeout=30.0,
        )
        topics = self.config.topics
        far = Leg(ClientState(options), options.version, TopicMap(topics, outwards=False), "far of " + self.config.name)
        near = Leg(ClientState(ConnectOptions()), 5, TopicMap(topics, outwards=True), self.near_site.name)
        self.far = Wire(self.far_site, "mqtt://test", self.config.name)
        self.far_site.entitle(self.far.client)
        self.relay = BridgeRelay(far, near, self._look, self.clean, self.config.retain, self.counts)
        self.relay.renews = self.unsure
        self.relay.learns = isinstance(self.config, LinkConfig) and self.config.filters == "learned"
        far.state.connection_made(self.near_site.now)
        self.flush()

    def _look(self) -> NearSession:
        return near_session(self.near_site.session(self.near_id))

    def flush(self) -> None:
        relay, far = self.relay, self.far
        if relay is None or far is None:
            return
        now = self.near_site.now
        if self.near is None and relay.joins():
            server = relay.far.state.server
            relay.far.site = site_in(server) or relay.far.site
            relay.near.state = ClientState(near_options(self.config, server))
            self.near = Wire(self.near_site, BRIDGE_LISTENER, self.config.name)
            relay.near.state.connection_made(now)
        if relay.phase == RUNNING and not self.running:
            self.note(self.config.name, "runs", "with" if relay.far_present else "without", "the old far session")
            self.running = True
            self.ran += 1
            if relay.far_present and self.far_lost:
                self.unlucky = True
            self.far_lost = False
            self.answered = set() if relay.far_present else self._look().released
        self._note_sent(relay)
        far.up += relay.take(relay.far, now)
        if self.near is not None:
            self.near.up += relay.take(relay.near, now)
        kept = sum(len(leg.waiting) + len(leg.partial.parts) for leg in (relay.near, relay.far))
        assert kept <= WAITING_MAX, "the relay keeps more and more"
        if relay.ended():
            self.end()

    def _note_sent(self, relay: BridgeRelay) -> None:
        version = relay.far.version
        # The PUBREL of a message that was not carried gets to the far broker if the connection ended before it.
        all_known = not (self.unlucky or self.cut_short) and relay.counts.kept_out == 0
        for frame in relay.near.out:
            if all_known and frame[:2] == b"\x70\x03" and frame[4] == Reason.PACKET_IDENTIFIER_NOT_FOUND:
                self.unmarked.append("the far broker got PUBREL for a handshake that it does not know")
        for frame in relay.far.out:
            if frame[0] >> 4 != 3 or not frame[0] & 6:
                continue
            start = 2
            while frame[start - 1] >= 0x80:
                start += 1
            packet = decode_publish(frame[0], frame, start, len(frame), version)
            if packet.payload.count(b"|") < 3 or packet.payload.split(b"|")[2] != b"2":
                continue  # its publisher may have sent it twice, or it is retained and sent to those who lack it
            before = self.sent.get(packet.payload, self.attempts)
            self.sent[packet.payload] = self.attempts
            if before == self.attempts:
                continue
            if not packet.dup:
                self.unmarked.append(f"{packet.payload[:40]!r} is sent again without DUP")
            users = decode_property_bytes(packet.properties).get(USER_PROPERTY, [])
            if version == 5 and not relay.far_present and (AGAIN, "1") not in users:  # type: ignore[operator]
                self.unmarked.append(f"{packet.payload[:40]!r} is sent again to a new session without {AGAIN}")

    def move(self, count: int) -> bool:
        """Bytes pass at all four places. Returns whether any did."""
        relay, far = self.relay, self.far
        if relay is None or far is None:
            return False
        moved = far.push(count)
        if self.near is not None:
            moved = self.near.push(count) or moved
        now = self.near_site.now
        if relay.reads() and (self.near is None or self.near.reads):
            data = far.pull(count)
            if data:
                relay.received(relay.far, data, now)
                moved = True
            elif far.closed:
                relay.lost(relay.far, "the other broker closed the connection")
        near = self.near
        if near is not None:
            data = near.pull(count)
            if data:
                relay.received(relay.near, data, now)
                moved = True
            elif near.closed:
                relay.lost(relay.near, "this broker closed the session of the bridge")
            self._watch_room(near, far)
        self.flush()
        return moved

    def _watch_room(self, near: Wire, far: Wire) -> None:
        full = len(far.up) > FULL
        if full != near.blocked and not near.lost:
            near.blocked = full
            if full:
                self.near_site.driver.blocked(near.client)
            else:
                self.near_site.driver.drained(near.client)
                self.near_site.run()

    def cut(self, silent: bool = False) -> None:
        """The connection to the far broker is lost."""
        if self.relay is not None:
            self.relay.lost(self.relay.far, "cut")
            self.end(silent)

    def end(self, silent: bool = False) -> None:
        relay, near, far = self.relay, self.near, self.far
        self.relay = self.near = self.far = None
        self.running = False
        if relay is not None:
            self.cut_short = self.cut_short or not self.answered.isdisjoint(self._look().released)
            self.clean, self.unsure = relay.begin_clean, relay.unsure
            self.problems = [*self.problems[-5:], relay.problem]
            self.note(self.config.name, "ends:", relay.problem, "in phase", relay.phase, "clean next" * self.clean)
        if near is not None:
            near.cut()
        if far is not None:
            far.cut(silent)

    def die(self) -> None:
        """The process of the bridge ends, and what it has in memory."""
        self.end()
        self.clean = False
        self.unsure = True

    def quiet(self) -> bool:
        return self.running and self.knows()

    def knows(self) -> bool:
        """Whether it has the subscriptions for all its topics: each site has a reader of everything."""
        if not self.relay or not self.relay.learns:
            return True
        for leg, site, client_id in (
            (self.relay.near, self.near_site, self.near_id),
            (self.relay.far, self.far_site, self.far_id),
        ):
            session = site.session(client_id)
            have = set() if session is None else {filter for filter, _ in session.subscriptions()}
            closed = site.hidden + b"/"
            if not have.issuperset(each for each in leg.topics.filters() if not each.startswith(closed)):
                return False
        return True
