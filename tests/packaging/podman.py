"""Containers, pods and networks of podman with the OCI runtime runc, in a storage of their own: those of this machine
are not touched. Everything ends with its engine."""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any, Final

import pytest

NEEDED: Final = ("podman", "runc", "iptables", "debootstrap")
CONFIGURATION: Final = """
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
[network]
network_backend = "netavark"
network_config_dir = "{directory}/networks"
[containers]
log_driver = "k8s-file"
default_ulimits = ["nofile={files}:{files}", "nproc={processes}:{processes}"]
"""
MANY: Final = 20_000  # open files, and processes
_numbers = count(1)


class Engine:
    """podman, as a program that ``podman-compose`` can run too."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.program = directory / "podman"
        self.files, self.processes = map(_allowed, (resource.RLIMIT_NOFILE, resource.RLIMIT_NPROC))
        configuration = directory / "containers.conf"
        configuration.write_text(CONFIGURATION.format(directory=directory, files=self.files, processes=self.processes))
        flags = f"--root {directory}/storage --runroot {directory}/run --storage-driver overlay --log-level fatal"
        self.program.write_text(f'#!/bin/sh\nCONTAINERS_CONF={configuration} exec podman {flags} "$@"\n')
        self.program.chmod(0o755)

    def __call__(self, *words: str | Path, expect: int | None = 0, stdin: bytes = b"", seconds: float = 120) -> str:
        """The stdout and stderr of a command of podman."""
        done = subprocess.run(
            [self.program, *words],
            input=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=seconds,
            check=False,
        )
        said = done.stdout.decode()
        assert expect is None or done.returncode == expect, f"podman {words}: {done.returncode}\n{said[-3000:]}"
        return said

    def inspect(self, kind: str, name: str) -> dict[str, Any]:
        (found,) = json.loads(self(kind, "inspect", name))
        return dict(found)

    def close(self) -> None:
        self("pod", "rm", "--all", "--force", "--time", "0", expect=None)
        self("rm", "--all", "--force", "--time", "0", expect=None)
        self("system", "reset", "--force", expect=None)


def _allowed(kind: int) -> int:
    hard = resource.getrlimit(kind)[1]
    return MANY if hard == resource.RLIM_INFINITY else min(MANY, hard)


@contextmanager
def engine(directory: Path) -> Iterator[Engine]:
    """Skips where there is none."""
    missing = [name for name in NEEDED if shutil.which(name) is None]
    if os.geteuid() != 0 or missing:
        pytest.skip(f"needs root and {', '.join(missing or NEEDED)} (scripts/system-packages containers)")
    made = Engine(directory)
    try:
        yield made
    finally:
        made.close()


class Container:
    """A running container. ``stop`` sends the signal that the image names."""

    def __init__(self, engine: Engine, name: str) -> None:
        self.engine = engine
        self.name = name

    def execute(self, *words: str, expect: int | None = 0) -> str:
        """stdout and stderr of a command inside."""
        return self.engine("exec", self.name, *words, expect=expect)

    def healthy(self, *words: str, seconds: float = 60) -> None:
        """Run the image's health check, or this command, until it succeeds."""
        end = time.monotonic() + seconds
        while True:
            asked = ("exec", self.name, *words) if words else ("healthcheck", "run", self.name)
            done = subprocess.run([self.engine.program, *asked], capture_output=True, timeout=60, check=False)
            if done.returncode == 0:
                return
            assert self.is_running(), self.log()
            assert time.monotonic() < end, f"{done.stdout!r}\n{self.log()[-3000:]}"
            time.sleep(0.3)

    def is_running(self) -> bool:
        return bool(self.engine.inspect("container", self.name)["State"]["Running"])

    def log(self) -> str:
        return self.engine("logs", self.name)

    def stop(self, grace: int = 60) -> int:
        """The exit code after the stop signal."""
        self.engine("stop", "--time", str(grace), self.name)
        return self.wait()

    def wait(self) -> int:
        """The exit code, once it has ended by itself."""
        return int(self.engine("wait", self.name))


@contextmanager
def container(engine: Engine, image: str, data: Path, *args: str, options: tuple[str, ...] = ()) -> Iterator[Container]:
    """The image's command, or its entry point with ``args``, as careful people run it: the root file system read-only,
    no capabilities, no network but loopback. ``data`` is its volume."""
    name = f"broker{next(_numbers)}"
    closed = ("--read-only", "--cap-drop", "all", "--security-opt", "no-new-privileges", "--network", "none")
    engine(
        "run", "--detach", "--name", name, *closed, *options, *("--volume", f"{data}:/var/lib/starlingmq"), image, *args
    )
    try:
        yield Container(engine, name)
    finally:
        engine("rm", "--force", "--time", "0", name)
