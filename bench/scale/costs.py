"""Unit costs on a real node, from the results of ``python -m bench --only paced,memory,cluster``."""

from __future__ import annotations

from pathlib import Path

import msgspec

from bench.report import OURS
from bench.results import Results, median
from bench.scale.memory import owner_bytes, summary_bytes


class CostsError(Exception):
    """The results lack required figures."""


class Costs(msgspec.Struct, frozen=True, kw_only=True):
    """CPU in microseconds, memory in bytes of a node's process."""

    message_us: float  # receive and send, each message in its own read and write
    hop_us: float  # added by a second node, in the sum of both, with batches
    filter_us: float  # a filter of another node
    filter_bytes: float
    connection_us: float  # accepting it, with its CONNECT and a filter
    connection_bytes: float
    ping_us: float
    idle_share: float  # share of a core, of one of three nodes without clients
    summary_bytes: float  # a filter of another node in a summary
    owner_bytes: float  # a client id, at the leader of its share; as much at the deputy
    machine: str
    started: str


def costs_of(path: Path) -> Costs:
    """Raises CostsError."""
    try:
        results = msgspec.json.decode(path.read_bytes(), type=Results)
    except (OSError, msgspec.MsgspecError) as error:
        raise CostsError(f"{path}: {error}; make it with: python -m bench --only paced,memory,cluster") from None
    rate = max((place.rate for place in results.paced), default=0.0)
    paced = [
        run for place in results.paced if place.qos == 1 and place.rate == rate for run in place.runs.get(OURS, [])
    ]
    idle = [run for place in results.memory for run in place.runs.get(OURS, [])]
    cluster = results.cluster
    if not paced or not idle or cluster is None or not cluster.storms or not cluster.quiet:
        raise CostsError(f"{path} lacks a section; make it with: python -m bench --only paced,memory,cluster")
    here = [run.clustered.broker_cpu * 1e6 / run.clustered.delivered_per_s for run in cluster.beside if run.qos == 1]
    there = [sum(run.cpu_us[:2]) for run in cluster.across if run.qos == 1]
    others = [one for storm in cluster.storms for one in storm.cpu_us[1:]]
    sizes = [one for storm in cluster.storms for one in storm.rss_per_route[1:]]
    return Costs(
        message_us=median([run.cpu_us_per_message for run in paced]),
        hop_us=median(there) - median(here),
        filter_us=median(others),
        filter_bytes=median(sizes),
        connection_us=median([run.broker_cpu_us_per_connection for run in idle]),
        connection_bytes=median([run.rss_per_connection for run in idle]),
        ping_us=median([run.broker_cpu_us_per_ping for run in idle]),
        idle_share=median([one for run in cluster.quiet for one in run.broker]),
        summary_bytes=summary_bytes(),
        owner_bytes=owner_bytes(),
        machine=f"{results.machine.cpu}, {results.machine.cores} cores",
        started=results.started[:10],
    )
