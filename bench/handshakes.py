"""The section about QoS 2 handshakes: on one node, continued on another one, and the growth of calls between nodes with
clients and nodes.
"""

from __future__ import annotations

import shutil

from bench import peers
from bench.cells import Job, RunError, Settings
from bench.handshake_cost import local
from bench.handshake_model import model
from bench.nodes import cluster
from bench.results import Handshakes, Results
from bench.returning import come_back
from bench.wire import SetupError


def handshakes(settings: Settings, results: Results) -> list[Job]:
    place = results.handshakes = Handshakes()

    def cost() -> None:
        place.local.append(local(settings.handshake_rounds))

    def back() -> None:
        try:
            with cluster() as nodes:
                place.returning.append(come_back(nodes, settings.returning))
        except (RunError, SetupError, peers.PeerError, OSError, TimeoutError) as error:
            place.errors.append(str(error) or type(error).__name__)

    def modelled(nodes: int, clients: int, hint: bool) -> None:
        place.modelled.append(model(nodes, clients, hint))

    jobs = [Job("handshakes: at one node", cost)]
    if "starlingmq" in settings.peers and not settings.quick:
        if shutil.which("etcd") is None:
            place.errors.append("etcd is not installed (Debian: apt-get install etcd-server)")
        else:
            jobs.append(Job("handshakes: all come back elsewhere", back))
    for hint in (True, False):
        for nodes in settings.modelled_nodes:
            for clients in settings.modelled_clients:
                label = f"handshakes: {clients:,} clients and {nodes} nodes in virtual time"
                jobs.append(Job(label, lambda n=nodes, c=clients, h=hint: modelled(n, c, h)))  # type: ignore[misc]
    return jobs
