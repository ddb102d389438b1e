"""The section about HTTP: the cost of a dashboard and Prometheus for a broker with many clients, and the first page."""

from __future__ import annotations

from bench import peers, watched
from bench.cells import STARLING_OPTIONS, Job, RunError, Section, Settings
from bench.results import LookingOn, Results
from starlingmq.cli.local_cluster import free_port

OURS = "starlingmq"


class Http(Section):
    def jobs(self, results: Results) -> list[Job]:
        if OURS not in self.settings.peers:
            return []
        place = results.http = LookingOn(self.settings.connections)
        return [Job(f"http: {place.connections:,} clients", lambda: self.run(place))] * self.settings.repeats

    def run(self, place: LookingOn) -> None:
        settings = self.settings
        port = free_port()
        options = [*STARLING_OPTIONS, "--listen", f"http://127.0.0.1:{port}"]
        try:
            with peers.started(OURS, settings.broker_core, options) as broker:
                spec = watched.Spec(
                    port=broker.port,
                    http_port=port,
                    broker=broker.pid,
                    core=settings.generator_core,
                    connections=place.connections,
                    settle_s=settings.settle,
                    duration=settings.watched_duration,
                )
                place.runs.append(self.child("watched", spec, watched.Outcome))
        except (RunError, peers.PeerError) as error:
            place.errors.append(str(error))


def looking_on(settings: Settings, results: Results) -> list[Job]:
    return Http(settings).jobs(results)
