"""``starlingmq backup``: copy a data directory, whether a broker is running on it or not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from starlingmq.cli.control import DataDirOption, FileOption, JsonOption, ask, directory_of
from starlingmq.cli.progress import amount, progress
from starlingmq.cli.workers_backup import backup_workers, workers_in


def command(
    target: Annotated[str, typer.Argument(metavar="TARGET", help="New or empty directory for the backup.")],
    data_dir: DataDirOption = None,
    config: FileOption = None,
    json_: JsonOption = False,
) -> None:
    """Back up all persistent data as of one moment, also from a running broker."""
    directory = directory_of(data_dir, config)
    where = Path(target).absolute()
    with progress(json_) as report:
        if workers_in(directory):
            done = backup_workers(directory, where, report)
        else:
            done = ask(directory, "backup", {"target": str(where)}, report)
    if json_:
        print(json.dumps(done))
    else:
        print(f"{done['target']}: {amount(done['bytes'], 'bytes')} in {done['seconds']:.1f} s")
