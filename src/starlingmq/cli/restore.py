"""``starlingmq restore``: a data directory made of a backup."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from starlingmq.cli.control import JsonOption
from starlingmq.cli.progress import amount, progress


def command(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="The directory of a backup.")],
    data_dir: Annotated[str, typer.Option("--data-dir", metavar="NEW", help="A new or empty directory.")],
    json_: JsonOption = False,
) -> None:
    """Make a new data directory of a backup, which is checked on the way."""
    from starlingmq.storage.maintenance.data_dir_backup import restore

    target = Path(data_dir).absolute()
    with progress(json_) as report:
        size = restore(Path(source), target, lambda done, total: report("copying", done, total, "bytes"))
    print(json.dumps({"data_dir": str(target), "bytes": size}) if json_ else f"{target}: {amount(size, 'bytes')}")
