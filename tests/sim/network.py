"""Streams between the nodes, as TCP and a hostile network make them: late, cut both ways or one, broken by a crash.

A stream carries frames one way, in order, and is opened by its sender. What is sent while its way is cut is held as TCP
holds it: a short cut makes it late, a long one breaks the stream and loses it, and the sender is told. On top of
that a world may lose and double single frames, or let them overtake each other, which the frames have to stand too.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Protocol

from msgspec.structs import replace
from tests.sim.schedule import Schedule
from tests.sim.seen import Seen
from tests.sim.trace import Trace

from starlingmq.cluster.links.control_frames import Heartbeat, MemberInfo, RouteSnapshot, SyncRequest
from starlingmq.cluster.links.peer_frames import Data, Envelope
from starlingmq.core.delivery.forward_batch import GROUP

RECONNECT_SECONDS = 0.2


def machine_of(host: str) -> str:
    """A broker that serves the data of n1 on the machine n2 listens at n1@n2."""
    return host.rpartition("@")[2]


class End(Protocol):
    """A life of a node, as the network sees it."""

    host: str
    alive: bool

    @property
    def incarnation(self) -> int: ...
    def frame(self, envelope: Envelope) -> None: ...
    def stream_open(self, number: int) -> None: ...
    def stream_gone(self, number: int) -> None: ...
    def process_gone(self, number: int, incarnation: int) -> None: ...


class Stream:
    """From ``source`` to the current incarnation at ``host``."""

    def __init__(self, source: End, number: int, host: str) -> None:
        self.source = source
        self.number = number
        self.host = host
        self.target: End | None = None  # while it is open
        self.wanted = True
        self.arrives = 0.0  # when the last frame that was sent arrives
        self.held: list[Envelope] = []  # sent while the way was cut


class Network:
    def __init__(self, schedule: Schedule, random: Random, trace: Trace, seen: Seen) -> None:
        self.schedule = schedule
        self.seen = seen
        self.random = random
        self.trace = trace
        self._chance = Random("what came later")  # so that what is drawn from the other stays what it was
        self.deceives = True  # a proxy that ends looks like a process that has ended
        self.delay = 0.001  # seconds; each frame draws up to three times that
        self.slow: dict[tuple[str, str], float] = {}  # (source host, target host) -> seconds more
        self.loss = 0.0  # share of the frames
        self.losing: list[tuple[str, str]] = []  # (source host, target host): all of them
        self.doubling = 0.0
        self.overtaking = False
        self.patience = 2.0  # seconds until the sender of a stream learns of a cut, twice that at most
        self.ends: dict[str, End] = {}  # host -> who listens there
        self.streams: dict[tuple[str, str], Stream] = {}  # (source host, target host)
        self.left: list[Stream] = []  # of the dead, with frames that wait for the end of a cut
        self.cuts: dict[tuple[str, str], int] = {}  # (source host, target host) -> how many faults cut this way
        self.changed_at = schedule.now  # when a way was last cut or healed
        self.frozen_until: dict[str, float] = {}  # host -> until when its process stands still
        self._beat: tuple[Heartbeat, Heartbeat] | None = None  # the last one sent, and what it was then
        self.frames = 0
        self.data_frames = 0  # handed over by nodes

    # Faults

    def is_cut(self, source: str, target: str) -> bool:
        return (machine_of(source), machine_of(target)) in self.cuts

    def _between(self, way: tuple[str, str]) -> list[Stream]:
        return [
            stream
            for (source, target), stream in self.streams.items()
            if (machine_of(source), machine_of(target)) == way
        ]

    def cut(self, ways: Sequence[tuple[str, str]]) -> None:
        for way in ways:
            self.cuts[way] = self.cuts.get(way, 0) + 1
            for stream in self._between(way):
                if stream.target is not None:
                    self._doubt(stream)
        self.changed_at = self.schedule.now

    def heal(self, ways: Sequence[tuple[str, str]]) -> None:
        for way in ways:
            left = self.cuts.get(way, 0) - 1
            if left > 0:
                self.cuts[way] = left
                continue
            self.cuts.pop(way, None)
            found = [stream for stream in self.left if (machine_of(stream.source.host), machine_of(stream.host)) == way]
            self.left = [stream for stream in self.left if stream not in found]
            for stream in found:  # it lay somewhere, and comes when the next life has begun
                self.schedule.after(self.random.random(), self._let_go, stream)
            for stream in self._between(way):
                self._let_go(stream)
        self.changed_at = self.schedule.now

    def _let_go(self, stream: Stream) -> None:
        held, stream.held = stream.held, []
        for envelope in held:
            self._carry(stream, envelope)

    def is_frozen(self, host: str) -> bool:
        """Whether it answers no new connections."""
        return self.schedule.now < self.frozen_until.get(machine_of(host), 0.0)

    def give_up_on(self, host: str) -> None:
        """Nothing has come from a node for too long: connections with it are closed. It learns of that when it goes
        on, behind everything that had arrived."""
        for (source, target), stream in list(self.streams.items()):
            if host in (machine_of(source), machine_of(target)):
                self._break(stream)

    # Streams

    def listen(self, end: End) -> None:
        self.ends[end.host] = end

    def want(self, source: End, peers: Sequence[MemberInfo]) -> None:
        """These are the peers that ``source`` wants streams to from now on."""
        hosts = {peer.address.partition(":")[0]: peer.number for peer in peers}
        for (origin, host), stream in list(self.streams.items()):
            if origin == source.host and hosts.get(host) != stream.number:
                self._drop(stream)
        for host, number in hosts.items():
            if host != source.host and (source.host, host) not in self.streams:
                stream = Stream(source, number, host)
                self.streams[source.host, host] = stream
                self.schedule.after(self._latency(), self._connect, stream)

    def send(self, source: End, number: int, envelope: Envelope) -> None:
        """Put a frame into the stream to the peer of that number; without one it is lost."""
        self.frames += 1
        body = envelope.body
        if isinstance(body, Heartbeat):  # it is bytes from here on: what the sender changes later does not show
            if self._beat is None or body is not self._beat[0]:  # it goes to several, in one turn
                frozen = replace(
                    body,
                    vector=dict(body.vector),
                    heard=dict(body.heard),
                    relayed=dict(body.relayed),
                    taken=dict(body.taken),
                )
                self._beat = body, frozen
            envelope = Envelope(
                envelope.source,
                envelope.incarnation,
                envelope.target,
                envelope.target_incarnation,
                self._beat[1],
                envelope.relayed,
            )
        elif isinstance(body, Data):
            self.data_frames += 1
            self.seen["relayed messages"] += envelope.relayed
            self.seen["group messages sent across"] += body.blob[0] & GROUP != 0
        elif isinstance(body, RouteSnapshot):
            self.seen["snapshots"] += body.last
        elif isinstance(body, SyncRequest):
            self.seen["records after a gap"] += body.epoch != 0
        self.seen["relayed frames"] += envelope.relayed
        for stream in self.streams.values():
            if stream.source is source and stream.number == number:
                break
        else:
            return
        if stream.target is None:
            return
        if self.is_cut(source.host, stream.host):
            stream.held.append(envelope)
            return
        self._carry(stream, envelope)
        if self.doubling and self.random.random() < self.doubling:
            self._carry(stream, envelope)

    def _latency(self) -> float:
        return self.delay * (0.5 + 2.5 * self.random.random())

    def _carry(self, stream: Stream, envelope: Envelope) -> None:
        way = (machine_of(stream.source.host), machine_of(stream.host))
        if way in self.losing or (self.loss and self.random.random() < self.loss):
            self.trace.envelope(stream.source.host, f"to {stream.host} LOST", envelope)
            return
        when = self.schedule.now + self._latency()
        slow = self.slow.get(way, 0.0)
        if slow:
            when += slow * self.random.random()
        if not self.overtaking:
            when = stream.arrives = max(when, stream.arrives)
        self.schedule.at(when, self._arrive, stream, stream.target, envelope)

    def _arrive(self, stream: Stream, target: End, envelope: Envelope) -> None:
        if target.alive and stream.target is target:
            if not stream.source.alive and stream.source.host in self.ends:
                self.seen["frames of an earlier life"] += 1
            self.trace.envelope(target.host, f"from {stream.source.host}:", envelope)
            target.frame(envelope)

    def _connect(self, stream: Stream) -> None:
        if not stream.wanted or not stream.source.alive:
            return
        target = self.ends.get(stream.host)
        unreachable = self.is_cut(stream.source.host, stream.host) or self.is_frozen(stream.host)
        if target is None or not target.alive or unreachable:
            self.schedule.after(RECONNECT_SECONDS * (0.5 + self.random.random()), self._connect, stream)
            return
        stream.target = target
        stream.arrives = 0.0
        stream.held = []
        self.trace.note(stream.source.host, f"stream to {stream.host} is open")
        stream.source.stream_open(stream.number)

    def _doubt(self, stream: Stream) -> None:
        """The way is cut: should it stay so, the sender finds out after a while."""
        patience = self.patience * (1.0 + self.random.random())
        self.schedule.after(patience, self._find_out, stream, stream.target)

    def _find_out(self, stream: Stream, target: End | None) -> None:
        way = (stream.source.host, stream.host)
        if stream.target is target and self.is_cut(*way) and stream.wanted:
            self._break(stream)

    def _break(self, stream: Stream) -> None:
        if stream.target is None or not stream.wanted:
            return
        stream.target = None
        stream.held = []
        if stream.source.alive:
            self.trace.note(stream.source.host, f"stream to {stream.host} is gone")
            stream.source.stream_gone(stream.number)
            self.schedule.after(RECONNECT_SECONDS * (0.5 + self.random.random()), self._connect, stream)

    def _drop(self, stream: Stream) -> None:
        stream.wanted = False
        stream.target = None
        self.streams.pop((stream.source.host, stream.host), None)

    def died(self, end: End) -> None:
        """A node is gone: its streams end, what is under way still arrives, and those to it are reset, which a cut may
        delay."""
        if self.ends.get(end.host) is end:
            del self.ends[end.host]
        for stream in list(self.streams.values()):
            if stream.source is end:
                stream.wanted = False
                del self.streams[stream.source.host, stream.host]
                if stream.held:
                    self.left.append(stream)
            elif stream.target is end:
                reset = self._latency() if not self.is_cut(end.host, stream.source.host) else self.patience
                self.schedule.after(reset, self._reset, stream, end)
                self.schedule.after(self._probing(), self._see_the_end, stream, end)
        self.changed_at = self.schedule.now

    def look_ended(self, ways: Sequence[tuple[str, str]]) -> None:
        """A proxy on these ways ends: it closes connections and refuses new ones, as if the target had ended."""
        self.cut(ways)
        for way in ways:
            for stream in self._between(way):
                if stream.target is None:
                    continue
                if self.deceives:
                    self.schedule.after(self._probing(), self._be_deceived, stream, stream.target)
                self._break(stream)

    def _be_deceived(self, stream: Stream, end: End) -> None:
        """Once nothing that the target has sent is under way any more."""
        if stream.wanted and stream.source.alive and end.incarnation:
            self.seen["living processes taken for ended"] += end.alive
            stream.source.process_gone(stream.number, end.incarnation)

    def _probing(self) -> float:
        """Seconds from the end of a process until another one has seen it, and has been refused."""
        return 4 * self.delay + 0.1 * self._chance.random()

    def _see_the_end(self, stream: Stream, end: End) -> None:
        """Unless a way is cut: then no close comes, nor a refusal."""
        way = (stream.source.host, stream.host)
        cut = self.is_cut(*way) or self.is_cut(*reversed(way))
        if stream.wanted and stream.source.alive and not cut and end.incarnation:
            self.seen["processes seen to end"] += 1
            stream.source.process_gone(stream.number, end.incarnation)

    def _reset(self, stream: Stream, target: End) -> None:
        if stream.target is target:
            self._break(stream)
