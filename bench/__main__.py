"""``python -m bench``: StarlingMQ beside mosquitto, amqtt and nats-server, in one run, on this machine.

Every broker runs alone on one core with its default configuration (a listener and anonymous clients apart), the load
generator on another. Results are written as JSON, a table and a plot. ``bench/README.md`` explains the cells.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from bench import peers, plot, report, report_handshakes
from bench.cells import QUICK, Job, Settings
from bench.fetched_peers import PEERS
from bench.results import Machine, Results
from bench.sections import SECTIONS

NOTES = [
    "Default configuration of every broker; a loopback listener and anonymous clients are configured, logging is off.",
    "The broker runs on one core, the load generator on another; brokers take turns; figures are medians.",
    "Closed loop: at most `window` messages per publisher are unacknowledged or undelivered; window 0 (QoS 0 only)"
    " floods; each broker gets the window with which it delivered most in a short run before.",
    "amqtt is left out of the paced section, whose rate it does not carry, and of the replay: it sends retained"
    " messages to clients that have not subscribed. In the sections about filters it gets a window instead of a flood.",
    "The generator's sockets acknowledge TCP segments at once, because mosquitto leaves Nagle's algorithm on;"
    " not so in the paced section, where `mosquitto-nodelay` has set_tcp_nodelay true.",
    "Persistence: mosquitto-persistent saves everything every half hour and at the end, mosquitto-1s every second;"
    " what it acknowledged since then is lost when it is killed. starlingmq-process loses nothing then,"
    " starlingmq-power nothing when the power fails either.",
    "NATS: a closed loop over deliveries, each peer with the window that suits it. JetStream's work queue: file"
    " storage, a push consumer with a deliver group, explicit acknowledgements, publishers that ask for theirs.",
]


def names(allowed: list[str], text: str) -> list[str]:
    chosen = text.split(",")
    if unknown := [name for name in chosen if name not in allowed]:
        raise argparse.ArgumentTypeError(f"unknown: {', '.join(unknown)}; known: {', '.join(allowed)}")
    return chosen


def arguments() -> argparse.Namespace:
    usual = ["starlingmq", "mosquitto", "amqtt", "nats-server"]
    known = list(dict.fromkeys([*usual, *PEERS]))
    parser = argparse.ArgumentParser(prog="python -m bench", description="Measure StarlingMQ beside other brokers.")
    parser.add_argument(
        "--quick", action="store_true", help="everything once and small, in seconds: a check, no result"
    )
    parser.add_argument("--only", type=lambda text: names(list(SECTIONS), text), default=list(SECTIONS))
    parser.add_argument(
        "--peers",
        type=lambda text: known if text == "all" else names(known, text),
        default=usual,
        help=f"of {', '.join(known)}, or all; one that cannot be installed is skipped with a line",
    )
    parser.add_argument("--repeats", type=int, help="how often each cell is measured (3)")
    parser.add_argument("--out", type=Path, default=Path("out/bench"))
    return parser.parse_args()


def settings_for(options: argparse.Namespace) -> Settings:
    cores = sorted(os.sched_getaffinity(0))
    changes = dict(QUICK) if options.quick else {}
    if options.repeats:
        changes["repeats"] = options.repeats
    found = Settings(
        peers=[peer for peer in options.peers if peer != "nats-server"],
        nats_peers=tuple(peer for peer in ("starlingmq", "nats-server") if peer in options.peers),
        broker_core=cores[0],
        generator_core=cores[-1],
        brokers=peers.Brokers(("starlingmq", "starlingmq-nats") if options.quick else ()),
        **changes,
    )
    # A generator or a broker needs a descriptor per connection and some more.
    room = peers.raise_file_limit() - 1_000
    if room < found.connections:
        print(f"only {room} file descriptors are allowed: fewer idle connections", file=sys.stderr)
        found = msgspec.structs.replace(found, connections=room)
    return found


def installed(wanted: list[str]) -> list[str]:
    """Return the peers that are installed or can be fetched; print a line about each of the others."""
    found = []
    for peer in wanted:
        try:
            peers.install(peer)
            found.append(peer)
        except peers.PeerError as error:
            print(f"{peer}: skipped: {error}", file=sys.stderr)
    return found


def machine(settings: Settings) -> Machine:
    models = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return Machine(
        cpu=models[0].partition(":")[2].strip() if models else platform.machine(),
        cores=os.cpu_count() or 0,
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        kernel=platform.release(),
        python=platform.python_version(),
        broker_core=settings.broker_core,
        generator_core=settings.generator_core,
        load_before=list(os.getloadavg()),
    )


def commit() -> str:
    """The measured commit, with a plus if the tree differs from it; empty outside a repository."""
    done = subprocess.run(
        ["git", "describe", "--always", "--dirty=+"], capture_output=True, text=True, check=False, cwd=peers.ROOT
    )
    return done.stdout.strip()


def work_off(jobs: list[list[Job]], console: Console) -> None:
    """Run the jobs of each list in sequence, and the lists concurrently."""
    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=console, refresh_per_second=2) as progress:
        task = progress.add_task("", total=sum(map(len, jobs)))

        def work(part: list[Job]) -> None:
            for job in part:
                progress.update(task, description=job.label)
                job.call()
                progress.advance(task)

        with ThreadPoolExecutor(len(jobs)) as pool:
            for done in [pool.submit(work, part) for part in jobs]:
                done.result()
        progress.update(task, description="done")


def parts(options: argparse.Namespace, settings: Settings, results: Results) -> list[list[Job]]:
    """Return the lists of jobs. A check may run clusters, which mostly wait, concurrently with the rest."""
    sections = {name: SECTIONS[name](settings, results) for name in options.only}
    clusters = sections.pop("cluster", []) if settings.quick else []
    return [part for part in ([job for jobs in sections.values() for job in jobs], clusters) if part]


def main() -> int:
    options = arguments()
    options.peers = installed(options.peers)
    settings = settings_for(options)
    console = Console(width=None if sys.stdout.isatty() else 150)
    try:
        versions = {peer: peers.version(peer) for peer in options.peers}
    except (peers.PeerError, subprocess.CalledProcessError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    results = Results(
        started=time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        commit=commit(),
        quick=options.quick,
        machine=machine(settings),
        versions=versions,
        notes=NOTES,
    )
    try:
        work_off(parts(options, settings, results), console)
    finally:
        settings.brokers.close()
    results.machine.load_after = list(os.getloadavg())
    results.summary = report.summary(results)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "results.json").write_bytes(msgspec.json.format(msgspec.json.encode(results)))
    plot.draw(results, options.out / "results.png")
    pictures = [options.out / "results.png"]
    if report_handshakes.draw(results, options.out / "handshakes.png"):
        pictures.append(options.out / "handshakes.png")
    report.show(results, console)
    console.print(", ".join(map(str, [options.out / "results.json", *pictures])), style="dim")
    return 1 if report.failures(results) else 0


if __name__ == "__main__":
    sys.exit(main())
