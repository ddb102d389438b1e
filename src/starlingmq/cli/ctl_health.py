"""``starlingmq ctl health``: the readiness check for nodes without an HTTP listener."""

from __future__ import annotations

import json
from typing import Final

from starlingmq.cli.control import DataDirOption, FileOption, JsonOption
from starlingmq.cli.ctl_ask import ask

NOT_READY: Final = 1  # exit code


def health(data_dir: DataDirOption = None, config: FileOption = None, json_: JsonOption = False) -> int:
    """Check whether this node accepts clients, and print why not; the exit code is 1 if it does not."""
    found = ask("health", data_dir, config)
    print(json.dumps(found) if json_ else "; ".join(found["reasons"]) or "ok")
    return NOT_READY if found["reasons"] else 0
