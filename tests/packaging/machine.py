"""A Debian machine with systemd in a container of systemd-nspawn, from a clean debootstrap, without a network."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parent.parent.parent
SCRIPTS: Final = ROOT / "scripts"
BOOT_SECONDS: Final = 120.0
NEEDED: Final = ("debootstrap", "systemd-nspawn", "nsenter", "dpkg-deb")


def refuse_without_tools() -> None:
    """Skips where there is no root or a tool is missing; `make test-deb` is for machines that have them."""
    missing = [name for name in NEEDED if shutil.which(name) is None]
    if os.geteuid() != 0 or missing:
        pytest.skip(
            f"needs root and {', '.join(missing) or 'the tools'} (apt-get install debootstrap systemd-container)"
        )


class Machine:
    """A booted system. Commands run in all of its namespaces, as root."""

    def __init__(self, tree: Path, leader: int) -> None:
        self.tree = tree
        self._leader = leader

    def run(self, *words: str, stdin: str | None = None, expect: int | None = 0, seconds: float = 180) -> str:
        """stdout and stderr of a command. Its exit code must be ``expect``; None: any."""
        done = subprocess.run(
            ["nsenter", "--target", str(self._leader), "--all", "--", "env", "-i", *_ENVIRONMENT, *words],
            input=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=seconds,
            check=False,
        )
        assert expect is None or done.returncode == expect, f"{words}: {done.returncode}\n{done.stdout[-4000:]}"
        return done.stdout

    def shell(self, text: str, expect: int | None = 0) -> str:
        return self.run("sh", "-ec", text, expect=expect)

    def wait_for(self, words: tuple[str, ...], wanted: str, seconds: float = 90) -> str:
        """Until the output of a command contains ``wanted``."""
        end = time.monotonic() + seconds
        while wanted not in (said := self.run(*words, expect=None)):
            assert time.monotonic() < end, f"{words} never said {wanted!r}:\n{said[-4000:]}"
            time.sleep(0.3)
        return said


_ENVIRONMENT: Final = (
    "PATH=/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME=/root",
    "LC_ALL=C.UTF-8",
    "DEBIAN_FRONTEND=noninteractive",
    "SYSTEMD_PAGER=",
)


@contextmanager
def booted(tree: Path, packages: tuple[str, ...]) -> Iterator[Machine]:
    """A machine with these of Debian's packages, until the block ends."""
    subprocess.run([SCRIPTS / "debian-chroot", tree, "systemd", "systemd-sysv", "dbus", *packages], check=True)
    command = ["unshare", "--mount", "--uts", "--ipc", "systemd-nspawn", "--quiet", "--directory", str(tree), "--boot"]
    command += ["--register=no", "--keep-unit", "--private-network", "--link-journal=no", f"--machine=smq{os.getpid()}"]
    with open(tree.parent / "console.log", "wb") as console:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=console, stderr=console, start_new_session=True
        )
        try:
            machine = Machine(tree, _leader(process))
            machine.wait_for(("systemctl", "is-system-running", "--wait"), "", BOOT_SECONDS)
            yield machine
            machine.run("systemctl", "poweroff", "--force", expect=None)
            process.wait(60)
        finally:
            process.kill()
            process.wait()
            subprocess.run([SCRIPTS / "remove-chroot", tree], check=True)


def _leader(process: subprocess.Popen[bytes]) -> int:
    """The process that is number 1 inside, once systemd answers."""
    end = time.monotonic() + BOOT_SECONDS
    while time.monotonic() < end:
        assert process.poll() is None, "the machine did not boot; console.log says why"
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        if children:
            asked = subprocess.run(
                ["nsenter", "--target", children[0], "--all", "--", "systemctl", "is-system-running"],
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                check=False,
            )
            if asked.stdout.strip() in ("running", "degraded"):
                return int(children[0])
        time.sleep(0.2)
    raise AssertionError("the machine did not boot in time")
