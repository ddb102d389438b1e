"""``starlingmq ctl cluster leave --url``: a node leaves its cluster, watched over HTTP."""

from __future__ import annotations

import time
from typing import Any, Final

from starlingmq.cli.declare import CommandError
from starlingmq.cli.progress import progress
from starlingmq.cli.remote import Unreachable, ask_url

POLL_SECONDS: Final = 0.5
BEGINS_SECONDS: Final = 10.0  # until the node has begun to leave
LEAVING_SECONDS: Final = 300.0  # for an answer of a node that is busy with leaving


def leave_url(url: str, force: bool, quiet: bool) -> dict[str, Any]:
    """Tell the node to leave, and wait until it no longer answers. Raises CommandError if it stays."""
    node = ask_url(url, "drain.state", {})["node"]
    ask_url(url, "leave.begin", {"force": "yes" if force else ""})
    until = time.monotonic() + BEGINS_SECONDS
    began = False
    with progress(quiet) as report:
        while True:
            try:
                state = ask_url(url, "drain.state", {}, LEAVING_SECONDS)
                began = began or state["draining"]
                if not state["draining"] and (began or time.monotonic() > until):
                    raise CommandError(f"{node} has not left its cluster: {_why(url)}")
            except Unreachable:
                return {"left": node}
            moved = state["moved"] + state["closed"] + state["handed_over"]
            left = state["clients_left"] + state["sessions_left"] + state["on_the_way"]
            report("handing over", moved, moved + left, "clients and sessions")
            time.sleep(POLL_SECONDS)


def _why(url: str) -> str:
    """The last word of the log on it."""
    lines = [line["message"] for line in ask_url(url, "log", {"level": "error", "limit": "100"})["lines"]]
    found = [line.partition("could not leave its cluster: ")[2] for line in lines]
    return next((line for line in reversed(found) if line), "its log says why")
