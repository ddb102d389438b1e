"""``starlingmq restore``: create a data directory from a backup."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from starlingmq.cli.control import JsonOption
from starlingmq.cli.progress import amount, progress
from starlingmq.cli.workers_backup import restore_workers, workers_in


def command(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="Directory of the backup.")],
    data_dir: Annotated[str, typer.Option("--data-dir", metavar="NEW", help="New or empty directory.")],
    json_: JsonOption = False,
) -> None:
    """Create a data directory from a backup, which is verified."""
    from starlingmq.storage.maintenance.data_dir_backup import restore

    target = Path(data_dir).absolute()
    with progress(json_) as report:
        if workers_in(Path(source)):
            size = restore_workers(Path(source), target, report)
        else:
            size = restore(Path(source), target, lambda done, total: report("copying", done, total, "bytes"))
    if os.geteuid() == 0 and target.stat().st_uid == 0:
        print(
            f"warning: {target} belongs to root; if the broker runs as another user: chown -R USER: {target}",
            file=sys.stderr,
        )
    print(json.dumps({"data_dir": str(target), "bytes": size}) if json_ else f"{target}: {amount(size, 'bytes')}")
