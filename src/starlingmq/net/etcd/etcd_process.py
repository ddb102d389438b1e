"""The etcd program as a child process: started so that it ends with this process, its log read, and stopped."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import shutil
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

from starlingmq.net.process import ending_with_us

log = logging.getLogger("starlingmq.etcd")

STOP_SECONDS: Final = 2.0  # a member without a majority waits for one; killing it loses nothing
LINE_BYTES_MAX: Final = 1 << 20
SAME_LINE_SECONDS: Final = 30.0  # the same message is not logged again within this time
LEVELS: Final = {"debug": logging.DEBUG, "info": logging.DEBUG, "warn": logging.WARNING}
# Warnings of etcd 3.4 without a problem, which are not the reason for its end: each start, each connection with another
# member.
NO_NEWS: Final = frozenset(
    ["simple token is not cryptographically signed"]
    + [f"{what} TCP streaming connection with remote peer" for what in ("established", "closed", "stopped")]
)
CRASHES: Final = ("panic: ", "fatal error: ")  # of Go's runtime
BOOTSTRAPPED: Final = "has already been bootstrapped"
REMOVED: Final = "the member has been permanently removed from the cluster"


class EtcdServerError(Exception):
    """The node's own etcd cannot run; one line that says what to do."""


def find_program(binary: str) -> str:
    program = shutil.which(binary)
    if program is None:
        raise EtcdServerError(
            f"etcd program {binary!r} not found; run apt-get install etcd-server, or set "
            "cluster.etcd.binary, or set cluster.etcd.endpoints to an existing etcd"
        )
    return program


class EtcdProcess:
    """One run of the program. ``last`` is the last warning that it wrote; ``removed``: it is no longer a member."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.pid = process.pid
        self.last = ""
        self.removed = False
        self.bootstrapped = False  # the other members know this member, and its disk is empty
        self.quiet = False  # it is about to stop, as others are: its warnings do not matter
        self._process = process
        self._logged_until: dict[str, float] = {}
        self._reader = asyncio.create_task(self._read())

    @classmethod
    async def start(cls, program: str, arguments: Sequence[str]) -> EtcdProcess:
        command = ending_with_us([program, *arguments], signal.SIGKILL)
        # etcd also reads settings from the environment. They would not override these, but add to them.
        env = {k: v for k, v in os.environ.items() if not k.startswith("ETCD_") or k == "ETCD_UNSUPPORTED_ARCH"}
        process = await asyncio.create_subprocess_exec(
            *command,
            env=env,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            limit=LINE_BYTES_MAX,
            start_new_session=True,  # Ctrl-C in a terminal is for the node, which then stops etcd
        )
        return cls(process)

    async def wait(self) -> int:
        """Its exit status, once it has ended and all of its output was logged."""
        code = await self._process.wait()
        await asyncio.shield(self._reader)
        return code

    async def stop(self) -> None:
        """Stops it with SIGTERM, and with SIGKILL after ``STOP_SECONDS``."""
        self.quiet = True
        with suppress(ProcessLookupError):
            self._process.terminate()
        try:
            async with asyncio.timeout(STOP_SECONDS):
                await asyncio.shield(self._process.wait())
        except TimeoutError:
            # The last member of a cluster that is being stopped does not exit either: no member can take over from it.
            log.info("etcd did not exit after SIGTERM; it is killed")
            self.kill()
        await self.wait()

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGKILL)

    async def _read(self) -> None:
        stream = self._process.stderr
        assert stream is not None
        while True:
            try:
                line = await stream.readline()
            except ValueError:  # longer than LINE_BYTES_MAX: the part that was read is lost
                continue
            if not line:
                return
            self._log_line(line.decode(errors="replace").strip())

    def _log_line(self, line: str) -> None:
        level, text = parse_line(line)
        if not text or text in NO_NEWS:
            return
        now = time.monotonic()
        if level >= logging.WARNING:
            self.last = text
            self.removed = self.removed or REMOVED in text
            self.bootstrapped = self.bootstrapped or BOOTSTRAPPED in text
        if level < logging.ERROR or self.quiet:
            level = logging.DEBUG  # it warns of much that needs no action; the node reports what affects it
        if self._logged_until.get(text, now) <= now:
            if len(self._logged_until) > 1000:
                self._logged_until.clear()
            self._logged_until[text] = now + SAME_LINE_SECONDS
            log.log(level, "etcd: %s", text)


def parse_line(line: str) -> tuple[int, str]:
    """Level and text of a line of etcd's log, which is JSON except for output of libraries and of Go's runtime."""
    try:
        entry: dict[str, Any] = json.loads(line)
        text = str(entry["msg"])
    except (ValueError, TypeError, KeyError):
        return logging.ERROR if line.startswith(CRASHES) else logging.WARNING, line
    return LEVELS.get(str(entry.get("level")), logging.ERROR), ": ".join([text, *_causes(entry)])


def _causes(entry: dict[str, Any]) -> list[str]:
    return [str(entry["error"])] if entry.get("error") else []
