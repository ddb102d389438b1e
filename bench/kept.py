"""The section about persistence as lists of jobs: the cost of storing, the time of recovery, the disk space."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

from bench import drain, fill, offline, peers, recovery
from bench.cells import STARLING_OPTIONS, Job, RunError, Section, Settings, Throughput
from bench.results import Away, Cell, Kept, Recovery, Results
from bench.wire import SetupError


def keeping(settings: Settings) -> list[str]:
    """Return the peers that store acknowledged messages, in each of their modes."""
    ours = ["starlingmq-process", "starlingmq-power"] if "starlingmq" in settings.peers else []
    return ours + (["mosquitto-persistent", "mosquitto-1s"] if "mosquitto" in settings.peers else [])


class Persistent(Throughput):
    """Throughput to persistent online sessions, compared with StarlingMQ in memory."""

    def jobs(self, results: Results) -> list[Job]:
        names = [*(["starlingmq"] if "starlingmq" in self.settings.peers else []), *keeping(self.settings)]
        jobs = []
        for shape, publishers, subscribers, levels in self.settings.persistent_shapes:
            for qos in levels:
                cell = Cell(shape, publishers, subscribers, qos, persistent=True)
                results.persistent.append(cell)
                jobs += self.cell_jobs(cell, names)
        return jobs


class Offline(Section):
    """Messages for disconnected clients. mosquitto has no power durability, so it is in the first rows only."""

    def jobs(self, results: Results) -> list[Job]:
        jobs = []
        for durability, publishers, window in self.settings.away:
            place = Away(durability, publishers, window)
            results.away.append(place)
            names = [f"starlingmq-{durability}"] if "starlingmq" in self.settings.peers else []
            if durability == "process" and "mosquitto" in self.settings.peers:
                names += ["mosquitto-persistent", "mosquitto-1s"]
            for _ in range(self.settings.repeats):
                jobs += [Job(f"{place.name}: {peer}", self.bind(place, peer)) for peer in names]
        return jobs

    def bind(self, place: Away, peer: str) -> Callable[[], None]:
        return lambda: self.measure(place, peer, "offline", offline.Outcome, lambda broker: self.spec(place, broker))

    def spec(self, place: Away, broker: peers.Broker) -> offline.Spec:
        return offline.Spec(
            port=broker.port,
            broker=broker.pid,
            core=self.settings.generator_core,
            broker_core=self.settings.broker_core,
            publishers=place.publishers,
            window=place.window,
            warm_up=self.settings.warm_up,
            duration=self.settings.duration,
        )


class Recoveries(Section):
    """Many sessions with messages: kill, start, stop, start. Once each, because it takes a minute."""

    def jobs(self, results: Results) -> list[Job]:
        place = Recovery(self.settings.recovered_sessions, self.settings.recovered_each)
        results.recovery.append(place)
        names = [peer for peer in keeping(self.settings) if peer in ("starlingmq-process", "mosquitto-persistent")]
        return [Job(f"{place.sessions} sessions come back: {peer}", self.bind(place, peer)) for peer in names]

    def bind(self, place: Recovery, peer: str) -> Callable[[], None]:
        return lambda: self.run(place, peer)

    def run(self, place: Recovery, peer: str) -> None:
        core = self.settings.broker_core
        try:
            found = recovery.run(peer, core, place.sessions, place.each, lambda broker: self.load(place, broker))
        except (RunError, SetupError, peers.PeerError, OSError) as error:
            place.errors[peer] = str(error)
        else:
            place.runs[peer] = found

    def load(self, place: Recovery, broker: peers.Broker) -> fill.Outcome:
        return self.away(broker, place.sessions, place.each, 64)

    def away(self, broker: peers.Broker, sessions: int, each: int, payload: int) -> fill.Outcome:
        spec = fill.Spec(
            port=broker.port,
            broker=broker.pid,
            core=self.settings.generator_core,
            sessions=sessions,
            each=each,
            payload=payload,
        )
        return self.child("fill", spec, fill.Outcome)


class BigSession(Recoveries):
    """The return of a session with a long queue; and the disk space of queued messages."""

    def jobs(self, results: Results) -> list[Job]:
        place = Kept(self.settings.big_session, self.settings.kept_messages, self.settings.kept_payload)
        results.kept.append(place)
        names = [peer for peer in keeping(self.settings) if peer in ("starlingmq-process", "mosquitto-persistent")]
        jobs = [
            Job(f"a session with {place.messages} messages: {peer}", self.bind_kept(self.drain, place, peer))
            for _ in range(self.settings.repeats)
            for peer in names
        ]
        return jobs + [Job(f"disk for messages: {peer}", self.bind_kept(self.disk, place, peer)) for peer in names]

    def bind_kept(self, call: Callable[[Kept, str], None], place: Kept, peer: str) -> Callable[[], None]:
        def attempt() -> None:
            try:
                call(place, peer)
            except (RunError, SetupError, peers.PeerError, OSError) as error:
                place.errors[peer] = str(error)

        return attempt

    def drain(self, place: Kept, peer: str) -> None:
        options = STARLING_OPTIONS if peer in peers.STARLING_VARIANTS else None
        with peers.started(peer, self.settings.broker_core, options) as broker:
            self.away(broker, 1, place.messages, 64)
            spec = drain.Spec(
                port=broker.port,
                broker=broker.pid,
                core=self.settings.generator_core,
                messages=place.messages,
                tells_stall=bool(options),
            )
            place.drains.setdefault(peer, []).append(self.child("drain", spec, drain.Outcome))

    def disk(self, place: Kept, peer: str) -> None:
        """Return the larger of the disk space while serving and after a graceful stop, relative to topics and
        payloads.
        """
        with tempfile.TemporaryDirectory(prefix="starlingmq-bench-") as name:
            with peers.running(peer, self.settings.broker_core, Path(name)) as broker:
                content = self.away(broker, 10, place.kept // 10, place.payload).content
                serving = disk_bytes(broker.data)
            place.disk[peer] = max(serving, disk_bytes(broker.data)) / content


def disk_bytes(folder: Path) -> int:
    """Return the allocated blocks of the files, in bytes."""
    return sum(path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file())


def persistence(settings: Settings, results: Results) -> list[Job]:
    return [
        *Persistent(settings).jobs(results),
        *Offline(settings).jobs(results),
        *Recoveries(settings).jobs(results),
        *BigSession(settings).jobs(results),
    ]
