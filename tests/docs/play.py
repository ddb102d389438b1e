"""``python -m tests.docs.play PAGE STORY``: do what the blocks of a story say, in a directory of its own, and see that
it comes out as the page shows it. Run in a network namespace of its own where there may be one (see ``test_blocks``),
so that the ports on the page are free.
"""

from __future__ import annotations

import fcntl
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Final

from tests.docs.blocks import ROOT, Block, stories

PATIENCE: Final = float(os.environ.get("STORY_SECONDS", "60"))  # for one command, or for a line of one that goes on
STAYS: Final = ("cd ", "export ", ". ")  # commands that change what comes after them
COLOURS: Final = re.compile(r"\x1b\[[0-9;]*m")


class StoryError(Exception):
    """The outcome differs from what the page says."""


def matches(shown: str, said: str) -> bool:
    """Whether ``said`` is what is shown, in which ``...`` stands for anything: a part of a line, or some lines."""
    lines = [line.rstrip() for line in said.strip("\n").splitlines()]
    pattern = ""
    for line in shown.strip("\n").splitlines():
        if line.strip() == "...":
            pattern += r"(?:.*\n)*?"
        else:
            pattern += ".*".join(re.escape(part) for part in line.rstrip().split("...")) + r"\n"
    return re.fullmatch(pattern, "".join(f"{line}\n" for line in lines)) is not None


class Running:
    """A command that goes on, as in a terminal of its own."""

    def __init__(self, command: str, directory: Path) -> None:
        self.command = command
        self.lines: list[str] = []
        self._news = threading.Condition()
        self._process = subprocess.Popen(
            ["bash", "-c", f"exec {command}"],
            cwd=directory,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._news:
                self.lines.append(COLOURS.sub("", line.rstrip("\n")))
                self._news.notify_all()

    def show(self, shown: str) -> None:
        """Wait until all lines that are shown have come, in their order, others between them or not."""
        at = 0
        for line in shown.splitlines():
            if line.strip() in ("", "..."):
                continue
            with self._news:
                met = self._news.wait_for(
                    lambda line=line, at=at: any(matches(line, said) for said in self.lines[at:]) or self._over(),  # type: ignore[misc]
                    PATIENCE,
                )
                here = [number for number, said in enumerate(self.lines) if number >= at and matches(line, said)]
            if not met or not here:
                raise StoryError(f"{self.command}: never said {line!r}, only:\n" + "\n".join(self.lines[-30:]))
            at = here[0] + 1

    def _over(self) -> bool:
        return self._process.poll() is not None

    def stop(self) -> None:
        """Ctrl-C."""
        if not self._over():
            os.killpg(self._process.pid, signal.SIGINT)
        try:
            code = self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            raise StoryError(f"{self.command}: does not end at Ctrl-C") from None
        self._reader.join()
        assert self._process.stdout is not None
        self._process.stdout.close()
        if code not in (0, 130, -signal.SIGINT):
            raise StoryError(f"{self.command}: ended with {code}:\n" + "\n".join(self.lines[-30:]))


class Story:
    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._running: list[Running] = []
        self._before: list[str] = []

    def tell(self, blocks: list[Block]) -> None:
        try:
            for number, block in enumerate(blocks):
                after = blocks[number + 1] if number + 1 < len(blocks) else None
                try:
                    self._do(block, after)
                except StoryError as error:
                    raise StoryError(f"{block.place}: {error}") from error
        finally:
            for running in reversed(self._running):
                running.stop()

    def _do(self, block: Block, after: Block | None) -> None:
        if block.what == "file":
            path = self._directory / block.mark.split()[-1]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text, encoding="utf-8")
        elif block.what == "printed":
            pass
        elif block.kind == "python":
            printed = after.text if after is not None and after.what == "printed" else ""
            path = self._directory / "program.py"
            path.write_text(block.text, encoding="utf-8")
            self._run(f"python {path.name}", printed)
        elif block.goes_on:
            for command, shown in block.commands():
                self._running.append(Running(command, self._directory))
                self._running[-1].show(shown)
        else:
            for command, shown in block.commands():
                self._run(command, shown)

    def _run(self, command: str, shown: str) -> None:
        if command.startswith(STAYS):
            self._before.append(command)
        try:
            done = subprocess.run(
                ["bash", "-c", "\n".join([*self._before, command])],
                cwd=self._directory,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                text=True,
                timeout=PATIENCE,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise StoryError(f"{command}: goes on after {PATIENCE:.0f} s: {error.output}") from None
        said = COLOURS.sub("", done.stdout)
        is_refused = shown.startswith("error:")
        if not matches(shown, said) or (done.returncode != 0) != is_refused:
            raise StoryError(f"{command}\nended with {done.returncode} and printed\n{said}\nThe page shows\n{shown}")


def loopback_up() -> None:
    """In a new namespace it is down: SIOCGIFFLAGS, SIOCSIFFLAGS with IFF_UP."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        name_and_flags = fcntl.ioctl(any_socket, 0x8913, struct.pack("16sh14x", b"lo", 0))
        flags = struct.unpack_from("h", name_and_flags, 16)[0]
        fcntl.ioctl(any_socket, 0x8914, struct.pack("16sh14x", b"lo", flags | 1))


def main(page: str, name: str) -> int:
    if os.environ.get("STORY_ALONE"):
        loopback_up()
    os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    os.environ["COLUMNS"] = "200"  # of a terminal that is wide enough
    os.environ["NODE_PATH"] = str(ROOT / "tests/js/node_modules")  # packages that pages install with npm
    with tempfile.TemporaryDirectory() as directory:
        os.environ["XDG_STATE_HOME"] = f"{directory}/state"
        home = Path(directory) / "here"
        home.mkdir()
        try:
            Story(home).tell(stories()[page, name])
        except StoryError as error:
            print(error)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
