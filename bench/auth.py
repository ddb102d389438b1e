"""The section about authentication: the cost of passwords and rules per message, and of logins for other clients."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from bench import generator, logins, peers
from bench.cells import Job, Settings, Throughput
from bench.results import Auth, Cell, LoggingIn, Results

WITHOUT = "starlingmq"
WITH = "starlingmq-auth"
FORGETS = "starlingmq-auth-forgets"
WINDOWS = {0: 1_000, 1: 1_000}  # the broker is the limit, not the latency of waking processes


class Guarded(Throughput):
    def jobs(self, results: Results) -> list[Job]:
        if "starlingmq" not in self.settings.peers:
            return []
        place = results.auth = Auth()
        jobs = []
        for name, publishers, subscribers, levels in self.settings.auth_shapes:
            for qos in levels:
                cell = Cell(name, publishers, subscribers, qos)
                place.cells.append(cell)
                for number in range(self.settings.repeats):  # the peers alternate, also in which is first
                    for peer in (WITHOUT, WITH) if number % 2 == 0 else (WITH, WITHOUT):
                        jobs.append(Job(f"auth: {cell.name} QoS {qos}: {peer}", self.bind(self.run, cell, peer)))
        for peer, what in ((WITH, "known"), (FORGETS, "hashed")):
            found = LoggingIn(what)
            place.logins.append(found)
            jobs += [Job(f"auth: logins, {what}", self.bind(self.log_in, found, peer))] * self.settings.repeats
        return jobs

    def run(self, cell: Cell, peer: str) -> None:
        window = cell.windows.setdefault(peer, WINDOWS[cell.qos])

        def spec(broker: peers.Broker) -> msgspec.Struct:
            return replace(self.spec(cell, broker, window, self.settings.duration), login=peers.LOGIN)

        self.measure(cell, peer, "generator", generator.Outcome, spec)

    def log_in(self, place: LoggingIn, peer: str) -> None:
        def spec(broker: peers.Broker) -> msgspec.Struct:
            return logins.Spec(
                port=broker.port,
                core=self.settings.generator_core,
                login=peers.LOGIN,
                rate=self.settings.login_rate,
                duration=self.settings.login_duration,
            )

        self.measure(place, peer, "logins", logins.Outcome, spec)


def auth(settings: Settings, results: Results) -> list[Job]:
    return Guarded(settings).jobs(results)
