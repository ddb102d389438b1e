"""``starlingmq backup``: copy a data directory, whether a broker is running on it or not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from starlingmq.cli.control import DataDirOption, FileOption, JsonOption, ask, directory_of
from starlingmq.cli.progress import amount, progress


def command(
    target: Annotated[str, typer.Argument(metavar="TARGET", help="New or empty directory for the backup.")],
    data_dir: DataDirOption = None,
    config: FileOption = None,
    json_: JsonOption = False,
) -> None:
    """Back up all persistent data as of one moment, also from a running broker."""
    directory = directory_of(data_dir, config)
    with progress(json_) as report:
        done = ask(directory, "backup", {"target": str(Path(target).absolute())}, report)
    if json_:
        print(json.dumps(done))
    else:
        print(f"{done['target']}: {amount(done['bytes'], 'bytes')} in {done['seconds']:.1f} s")
