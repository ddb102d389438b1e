"""``python -m tests.docs.generate``: write the pages and pictures of docs/ that are made from the code.

``PAGES`` has all of them. With ``--check`` nothing is written: exit 1 when one of them is not what would be written.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

import starlingmq
from tests.docs import actions_page, config_page, ledger_page, states

DOCS: Final = Path(__file__).resolve().parent.parent.parent / "docs"

PAGES: Final[dict[str, Callable[[], str]]] = {
    "ACTIONS.md": actions_page.page,
    "CONFIGURATION.md": config_page.page,
    "CONFORMANCE.md": ledger_page.page,
    "images/qos2-receiver.svg": states.qos2_receiver,
    "images/sender.svg": states.sender,
    "images/session-life.svg": states.session_life,
    "images/node-life.svg": states.node_life,
    "images/takeover.svg": states.takeover,
    "images/inbound-source.svg": states.inbound_source,
    "images/inbound-session.svg": states.inbound_session,
    "images/outbound-session.svg": states.outbound_session,
    "images/handshake.svg": states.handshake,
    "images/group-line.svg": states.group_line,
}


def main(arguments: list[str]) -> int:
    stale = []
    for name, make in PAGES.items():
        path = DOCS / name
        text = make()
        if path.is_file() and path.read_text(encoding="utf-8") == text:
            continue
        stale.append(name)
        if "--check" not in arguments:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
            print(f"written: docs/{name}")
        else:
            print(f"docs/{name} is not what the code says; run: python -m tests.docs.generate")
    return 1 if stale and "--check" in arguments else 0


if __name__ == "__main__":
    if starlingmq.compiled():  # the generator needs an interpreted class, which it can watch
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, "STARLINGMQ_PURE": "1"})
    sys.exit(main(sys.argv[1:]))
