"""``python -m compiling``: compile the hot modules of this checkout, unless they are up to date.

``python -m compiling --meanwhile COMMAND...`` runs a command immediately: interpreted, while a background process
compiles. That process ends with the command, and the next one continues from its object files.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import Final

from compiling.checkout import Checkout
from compiling.requirements import missing

PURE: Final = "STARLINGMQ_PURE"
NICENESS: Final = 10  # lower priority than the command
SERVING_INTERPRETED: Final = (
    "runs interpreted, several times slower, while its hot modules are compiled: a few minutes on two cores"
)
COMPILED: Final = "the hot modules are compiled: restart to use them"


def wanted() -> bool:
    return os.environ.get(PURE, "") in ("", "0")


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def meanwhile(checkout: Checkout, command: list[str]) -> None:
    """Replace this process by the command. Its imports are either all compiled or all interpreted."""
    if wanted() and not checkout.up_to_date():
        checkout.leave_interpreted()
        if lacking := missing():
            say(f"warning: starlingmq is not compiled and runs interpreted, several times slower: {lacking}")
        else:
            say(SERVING_INTERPRETED)
            compile_beside(checkout)
        os.environ[PURE] = "1"  # also for processes that the command starts later
    os.execvp(command[0], command)


def compile_beside(checkout: Checkout) -> None:
    """Compile in a detached process with its own session, so that Ctrl-C does not reach its compilers."""
    ended, held_open = os.pipe()
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        os.close(ended)
        os.set_inheritable(held_open, True)  # the command holds it open as long as it runs
        return
    os.close(held_open)
    os.setsid()
    if os.fork():
        os._exit(0)
    os.nice(NICENESS)
    threading.Thread(target=end_with_the_command, args=(ended,), daemon=True).start()
    try:
        if checkout.compile():
            say(COMPILED)
    except Exception as error:
        say(f"warning: compiling fails: {error}")
    finally:
        os._exit(0)


def end_with_the_command(ended: int) -> None:
    """End this session, including its compilers, when the command has ended, which closes the pipe."""
    os.read(ended, 1)
    os.killpg(os.getpgrp(), signal.SIGTERM)


def main(arguments: list[str]) -> int:
    checkout = Checkout(progress=not arguments)
    if arguments[:1] == ["--meanwhile"]:
        meanwhile(checkout, arguments[1:])
    if arguments:
        say(__doc__ or "")
        return 2
    if not wanted() or checkout.up_to_date():
        return 0
    print("compiling the hot modules: a few minutes on two cores", flush=True)
    # The broker works without a compiler; setup.py has reported in one line what is missing.
    return 0 if checkout.compile() or not must_compile() else 1


def must_compile() -> bool:
    return os.environ.get("STARLINGMQ_COMPILE", "") not in ("", "0")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
