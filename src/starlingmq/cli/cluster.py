"""``starlingmq cluster``: a whole cluster on this machine, in one terminal."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console
from rich.text import Text

from starlingmq.cli.children import Child, first_of, how_it_ended, ready_or_ended
from starlingmq.cli.declare import CommandError
from starlingmq.cli.local_cluster import OFFERS, login_of, missing_packages, prepare, settings_files, streams_of

COLOURS: Final = ("cyan", "green", "magenta", "yellow", "blue", "red")
STOP_SECONDS: Final = 30.0  # node.shutdown_timeout in the generated settings

app = typer.Typer(help="Run a cluster on this machine.", no_args_is_help=True)


@app.callback()
def group() -> None:
    """Run a cluster on this machine."""


@app.command()
def up(
    directory: Annotated[
        Path, typer.Option("--dir", metavar="DIR", help="Directory for the settings and data of the nodes.")
    ] = Path("starling"),
    nodes: Annotated[int, typer.Option("--nodes", metavar="N", help="Number of nodes.")] = 3,
    base_port: Annotated[
        int,
        typer.Option(
            metavar="P", help="MQTT port of the first node; the others use the following ports. 0: free ports."
        ),
    ] = 1883,
    nats: Annotated[
        bool | None,
        typer.Option(
            "--nats/--no-nats",
            help="Listen for NATS clients, on the MQTT port + 400.",
            show_default="yes if the cluster is new",
        ),
    ] = None,
    http: Annotated[
        bool | None,
        typer.Option(
            "--http/--no-http",
            help="Serve the API and the dashboard, on the MQTT port + 500.",
            show_default="yes if the cluster is new",
        ),
    ] = None,
    streams: Annotated[
        bool | None,
        typer.Option(
            "--streams/--no-streams",
            help="Serve streams to bulk readers (Spark), on the MQTT port + 600.",
            show_default="yes if the cluster is new",
        ),
    ] = None,
    log_level: Annotated[str, typer.Option(metavar="LEVEL", help="debug, info, warning or error.")] = "info",
) -> int:
    """Start all nodes and show their log lines; Ctrl-C stops them. DIR keeps their data for the next start.

    A new cluster has listeners for NATS, the dashboard and streams, as far as their packages are installed. Those of a
    cluster that exists are changed only by --nats, --http and --streams.
    """
    data_dir = directory.absolute()
    wanted = dict(zip(OFFERS, (nats, http, streams), strict=True))
    lacking = (
        {} if settings_files(data_dir) else {offer: names for offer in OFFERS if (names := missing_packages(offer))}
    )
    for offer in OFFERS:
        if wanted[offer] is None:
            wanted[offer] = not settings_files(data_dir) and offer not in lacking
    paths = prepare(data_dir, nodes, base_port, [offer for offer, asked in wanted.items() if asked])
    notes = [
        f"no {offer}: install {', '.join(names)} (pip install '.[{offer}]' in the sources)"
        for offer, names in lacking.items()
        if not wanted[offer]
    ]
    return asyncio.run(_run(paths, log_level, notes))


async def _run(paths: list[Path], log_level: str, notes: list[str]) -> int:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    names = [path.parent.name for path in paths]
    teller = Teller(names)
    flags = ("--log-level", log_level, "--set", "log.format=text")
    children = [Child(name, ("-c", str(path), *flags), teller.line) for name, path in zip(names, paths, strict=True)]
    settings = dict(zip(names, paths, strict=True))
    try:
        for child in children:
            await child.start()
        stopping = asyncio.ensure_future(stop.wait())
        starting = asyncio.gather(*(ready_or_ended(child) for child in children))
        await first_of(stopping, starting)
        if stop.is_set():
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
            return 0
        failed = [child for child in children if not child.ready.is_set()]
        if failed:
            raise CommandError(", ".join(f"{child.name} {how_it_ended(child)}" for child in failed))
        for child in children:
            teller.own(f"{child.name} serves {' '.join(child.addresses)}")
        print("ready", *(address for child in children for address in child.addresses), flush=True)
        for note in notes:
            teller.own(note)
        streams = streams_of(paths[0])
        if streams:
            teller.own(f"streams: {streams}")
        teller.own(f"status: starlingmq ctl cluster status --data-dir {paths[0].parent / 'data'}  (Ctrl-C stops all)")
        dashboards = [url for child in children for url in child.addresses if url.startswith(("http://", "https://"))]
        if dashboards:
            teller.own(f"dashboard: {dashboards[0]}  ({login_of(paths[0])})")
        watches = [asyncio.create_task(_watch(child, settings[child.name], teller)) for child in children]
        ending = asyncio.ensure_future(asyncio.wait(watches))
        await first_of(stopping, ending)
        for task in (ending, *watches):
            task.cancel()
        await asyncio.gather(ending, *watches, return_exceptions=True)
        if not stop.is_set():
            raise CommandError("all nodes have ended")
        return 0
    finally:
        if any(not child.ended.is_set() for child in children):
            teller.own("stopping")
        await asyncio.gather(*(child.stop(STOP_SECONDS) for child in children))


async def _watch(child: Child, settings: Path, teller: Teller) -> None:
    await child.ended.wait()
    teller.own(f"{child.name} {how_it_ended(child)}; restart it with: starlingmq serve -c {settings}")


class Teller:
    """Prints the output of the nodes on stderr, each line after the node's name."""

    def __init__(self, names: list[str]) -> None:
        self._console = Console(stderr=True, soft_wrap=True, highlight=False)
        self._width = max(map(len, names))
        self._colours = {name: COLOURS[index % len(COLOURS)] for index, name in enumerate(names)}

    def line(self, name: str, text: str) -> None:
        self._console.print(Text(f"{name:{self._width}} | ", self._colours[name]) + Text(text))

    def own(self, text: str) -> None:
        self._console.print(Text(text, "bold"))
        sys.stderr.flush()
