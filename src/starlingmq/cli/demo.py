"""``starlingmq demo``: a cluster with a fleet of devices on this machine, with live failures and repairs."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from starlingmq.cli.declare import CommandError
from starlingmq.demo.show import DemoOptions, play

DEVICES_MAX = 5000


def command(
    devices: Annotated[
        int, typer.Option("--devices", metavar="N", min=1, max=DEVICES_MAX, help="Number of MQTT clients.")
    ] = 1000,
    minutes: Annotated[
        float, typer.Option("--minutes", metavar="M", min=0.1, max=60, help="Approximate duration.")
    ] = 4.0,
    pace: Annotated[
        float, typer.Option("--pace", metavar="SECONDS", min=0.1, help="Seconds between two readings of a device.")
    ] = 7.5,
    no_spark: Annotated[bool, typer.Option("--no-spark", help="Run without pipelines and delivery audit.")] = False,
    delta: Annotated[
        bool, typer.Option("--delta", help="Write a Delta table, whose packages Spark downloads, in place of Parquet.")
    ] = False,
    no_faults: Annotated[bool, typer.Option("--no-faults", help="Run without failures.")] = False,
    directory: Annotated[
        Path | None,
        typer.Option(
            "--dir", metavar="DIR", help="Directory for all files; without it a temporary one is used and removed."
        ),
    ] = None,
) -> int:
    """Run three nodes, a fleet of devices, NATS workers and Spark on this machine; kill a node, cut a link, repair
    both, and report what clients noticed. Ctrl-C stops everything."""
    if delta and no_spark:
        raise CommandError("--delta needs Spark; leave out --no-spark")
    if directory is not None and directory.exists() and any(directory.iterdir()):
        raise CommandError(f"{directory} is not empty; give another directory")
    return asyncio.run(play(DemoOptions(devices, minutes, pace, not no_spark, delta, not no_faults, directory)))
