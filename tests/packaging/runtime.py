"""A container of an image file, run by the OCI runtime runc as an engine runs it: read-only root, no capabilities."""

from __future__ import annotations

import json
import subprocess
import tarfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

NAMESPACES: Final = ("pid", "mount", "ipc", "uts", "network")
DEVICES: Final = (
    {"destination": "/proc", "type": "proc", "source": "proc"},
    {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755", "size=65536k"]},
    {"destination": "/dev/shm", "type": "tmpfs", "source": "shm", "options": ["nosuid", "noexec", "mode=1777"]},
    {"destination": "/tmp", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "nodev", "mode=1777"]},
)
SECOND: Final = 1_000_000_000


class Image:
    """An unpacked image. ``config`` says how it runs."""

    def __init__(self, file: Path, directory: Path) -> None:
        with tarfile.open(file) as archive:
            archive.extraction_filter = getattr(tarfile, "data_filter", None)  # not before Python 3.11.4
            archive.extractall(directory / "layout")
        layout = directory / "layout"
        (described,) = json.loads((layout / "index.json").read_text())["manifests"]
        manifest = self._blob(layout, described)
        self.packed = sum(each["size"] for each in manifest["layers"])
        self.config: dict[str, Any] = self._blob(layout, manifest["config"])
        self.tree = directory / "tree"
        self.tree.mkdir()
        for layer in manifest["layers"]:
            blob = layout / "blobs" / layer["digest"].replace(":", "/")
            subprocess.run(
                ["tar", "--extract", "--numeric-owner", "--file", blob, "--directory", self.tree], check=True
            )

    @staticmethod
    def _blob(layout: Path, described: dict[str, Any]) -> dict[str, Any]:
        text = (layout / "blobs" / described["digest"].replace(":", "/")).read_bytes()
        assert len(text) == described["size"]
        found: dict[str, Any] = json.loads(text)
        return found


class Container:
    """A running container. ``stop`` sends the signal that the image names."""

    def __init__(self, name: str, state: Path, process: subprocess.Popen[bytes], image: Image, output: Path) -> None:
        self.name = name
        self._state = state
        self._process = process
        self._image = image
        self._output = output

    def execute(self, *words: str, expect: int | None = 0) -> str:
        """stdout and stderr of a command inside, as `docker exec`."""
        done = subprocess.run(
            ["runc", "--root", self._state, "exec", *self._environment(), self.name, *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=120,
            check=False,
        )
        assert expect is None or done.returncode == expect, f"{words}: {done.returncode}\n{done.stdout[-3000:]}"
        return done.stdout

    def healthy(self, seconds: float = 60) -> None:
        """Run the image's health check until it succeeds."""
        kind, *words = self._image.config["config"]["Healthcheck"]["Test"]
        assert kind == "CMD"
        end = time.monotonic() + seconds
        while True:
            assert self._process.poll() is None, self.log()
            said = self.execute(*words, expect=None)
            if said.strip() == "ok":
                return
            assert time.monotonic() < end, f"{said}\n{self.log()}"
            time.sleep(0.3)

    def log(self) -> str:
        return self._output.read_text()

    def stop(self) -> int:
        """The exit code after the stop signal."""
        signal = self._image.config["config"]["StopSignal"]
        subprocess.run(["runc", "--root", self._state, "kill", self.name, signal], check=True)
        return self.wait()

    def wait(self) -> int:
        """The exit code, once it has ended by itself."""
        return self._process.wait(60)

    def _environment(self) -> list[str]:
        return [word for pair in self._image.config["config"]["Env"] for word in ("--env", pair)]


@contextmanager
def container(
    image: Image, directory: Path, data: Path, args: list[str] | None = None, network: str = ""
) -> Iterator[Container]:
    """The image's command, or its entry point with ``args``. ``data`` is its volume."""
    config = image.config["config"]
    mounts = [bound(data, next(iter(config["Volumes"])), writable=True)]
    command = [*config["Entrypoint"], *(config["Cmd"] if args is None else args)]
    with started(image, directory, command, config["Env"], mounts, network) as running:
        yield running


def bound(source: Path, destination: str, writable: bool = False) -> dict[str, Any]:
    """A mount of a file or directory of this machine."""
    return {
        "destination": destination,
        "type": "bind",
        "source": str(source),
        "options": ["rbind", "rw" if writable else "ro"],
    }


@contextmanager
def started(
    image: Image, directory: Path, command: list[str], env: list[str], mounts: list[dict[str, Any]], network: str = ""
) -> Iterator[Container]:
    """A command in a container of the image. ``network``: the path of its network namespace; a new one if empty."""
    name = f"smq-{directory.name}-{time.monotonic_ns()}"
    bundle = directory / name
    bundle.mkdir()
    user, group = map(int, image.config["config"]["User"].split(":"))
    namespaces: list[dict[str, str]] = [{"type": kind} for kind in NAMESPACES if kind != "network"]
    namespaces.append({"type": "network", "path": network} if network else {"type": "network"})
    spec = {
        "ociVersion": "1.0.0",
        "hostname": name[:60],
        "process": {
            "terminal": False,
            "user": {"uid": user, "gid": group},
            "args": command,
            "env": env,
            "cwd": image.config["config"]["WorkingDir"],
            "capabilities": {kind: [] for kind in ("bounding", "effective", "permitted", "inheritable", "ambient")},
            "noNewPrivileges": True,
        },
        "root": {"path": str(image.tree), "readonly": True},
        "mounts": [*DEVICES, *mounts],
        "linux": {"namespaces": namespaces},
    }
    (bundle / "config.json").write_text(json.dumps(spec))
    state = directory / "state"
    output = bundle / "output"
    run = ["runc", "--root", str(state), "run", "--bundle", str(bundle), name]
    with output.open("wb") as file:
        process = subprocess.Popen(run, stdin=subprocess.DEVNULL, stdout=file, stderr=file)
        try:
            yield Container(name, state, process, image, output)
        finally:
            subprocess.run(["runc", "--root", state, "delete", "--force", name], check=False, capture_output=True)
            process.kill()
            process.wait()
