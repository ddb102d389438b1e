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
from starlingmq.cli.local_cluster import OFFERS, prepare

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
    nats: Annotated[bool, typer.Option("--nats", help="Also listen for NATS clients, on ports 400 above.")] = False,
    http: Annotated[
        bool, typer.Option("--http", help="Also serve the API and the dashboard, on ports 500 above.")
    ] = False,
    streams: Annotated[
        bool, typer.Option("--streams", help="Also serve streams to bulk readers (Spark), on ports 600 above.")
    ] = False,
    log_level: Annotated[str, typer.Option(metavar="LEVEL", help="debug, info, warning or error.")] = "info",
) -> int:
    """Start all nodes and show their log lines; Ctrl-C stops them. DIR keeps their data for the next start."""
    wanted = zip(OFFERS, (nats, http, streams), strict=True)
    paths = prepare(directory.absolute(), nodes, base_port, [offer for offer, asked in wanted if asked])
    return asyncio.run(_run(paths, log_level))


async def _run(paths: list[Path], log_level: str) -> int:
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
        dashboards = [url for child in children for url in child.addresses if url.startswith("http://")]
        if dashboards:
            teller.own(f"dashboard {dashboards[0]}")
        teller.own(f"starlingmq ctl cluster status --data-dir {paths[0].parent / 'data'}  (Ctrl-C stops all)")
        print("ready", *(address for child in children for address in child.addresses), flush=True)
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
