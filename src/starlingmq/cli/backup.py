"""``starlingmq backup``: copy a data directory, whether a broker is running on it or not."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from starlingmq.cli.control import ask, directory_of
from starlingmq.cli.ctl_ask import AskedBroker, asks
from starlingmq.cli.progress import amount, progress
from starlingmq.cli.workers_backup import backup_workers, workers_in


@asks
def command(
    broker: AskedBroker,
    target: Annotated[str, typer.Argument(metavar="TARGET", help="New or empty directory for the backup.")],
) -> None:
    """Back up all persistent data as of one moment, also from a running broker."""
    directory = directory_of(broker.data_dir, broker.config)
    where = Path(target).absolute()
    with progress(broker.json) as report:
        if workers_in(directory):
            done = backup_workers(directory, where, report)
        else:
            done = ask(directory, "backup", {"target": str(where)}, report)
    broker.done(done, f"{done['target']}: {amount(done['bytes'], 'bytes')} in {done['seconds']:.1f} s")
