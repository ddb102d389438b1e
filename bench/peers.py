"""The measured brokers: installs each, starts it on one core, and stops it by its process id."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

import starlingmq
from bench.fetched_peers import PEERS, apt
from bench.fetched_peers import ROOT as ROOT
from bench.fetched_peers import PeerError as PeerError
from bench.fetched_peers import install as fetch
from starlingmq.auth.password_file import PasswordFile
from starlingmq.cli.local_cluster import free_port

START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 60.0

MOSQUITTO_CONF = "listener {port} 127.0.0.1\nallow_anonymous true\nlog_dest none\n"
MOSQUITTO_KEEPS = (  # as root if this process is, because another user cannot write there
    "user root\npersistence true\npersistence_location {folder}/data/\nmax_queued_messages 0\nmax_queued_bytes 0\n"
)
MOSQUITTO_VARIANTS = {
    "mosquitto": "",
    "mosquitto-nodelay": "set_tcp_nodelay true\n",
    "mosquitto-persistent": MOSQUITTO_KEEPS,  # saves everything every half hour and at the end
    "mosquitto-1s": MOSQUITTO_KEEPS + "autosave_interval 1\n",  # saves everything every second
}
UNBOUNDED = [
    *("--set", "mqtt.max_mqueue_len=0"),
    *("--set", "limits.queue_bytes=0"),
    *("--set", "limits.subscriptions_per_client=0"),
]
STARLING_VARIANTS = {
    "starlingmq": [],
    "starlingmq-auth": [],  # passwords and rules
    "starlingmq-auth-forgets": [],  # and every login is hashed
    "starlingmq-process": ["process"],
    "starlingmq-power": ["power"],
    "starlingmq-nats": [],  # for NATS clients
    "starlingmq-nats-process": ["process"],
}
NATS_VARIANTS = {"nats-server": [], "nats-server-jetstream": ["--jetstream", "--store_dir", "{folder}/data"]}
LOGIN = ("bench", "the password of all clients")  # where authentication is on
RULES = """\
default: deny
rules:
- {deny: connect, addresses: [192.0.2.0/24]}
- {deny: all, users: ["guest-*"]}
- {deny: all, clients: ["retired-*"]}
- {allow: all, users: [admin], topics: ["#", "$SYS/#"]}
- {deny: publish, topics: ["secret/#"]}
- {deny: publish, topics: ["plant/+/config"], retain: true}
- {allow: publish, topics: ["devices/%c/#"]}
- {allow: [publish, subscribe], topics: ["users/%u/#"]}
- {allow: subscribe, topics: ["$SYS/#"]}
- {allow: [publish, subscribe], topics: ["b/#"]}
"""


class Broker(msgspec.Struct, frozen=True):
    """A running broker."""

    peer: str
    pid: int
    port: int
    data: Path  # its data directory


def mosquitto_path() -> str:
    path = shutil.which("mosquitto", path=os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin")
    if not path:
        raise PeerError("mosquitto is not installed (Debian: apt-get install mosquitto)")
    return path


def install(peer: str) -> None:
    """Install a missing peer. Raises PeerError with the reason for a failure in one line."""
    if peer in PEERS:
        fetch(peer)
    elif peer.startswith("mosquitto"):
        try:
            mosquitto_path()
        except PeerError:
            apt("mosquitto")


def command(peer: str, port: int, folder: Path, options: list[str]) -> list[str]:
    """Return the command that starts this peer on that port; ``options`` are further arguments for starlingmq."""
    if peer in MOSQUITTO_VARIANTS:
        conf = folder / "mosquitto.conf"
        (folder / "data").mkdir(exist_ok=True)
        conf.write_text((MOSQUITTO_CONF + MOSQUITTO_VARIANTS[peer]).format(port=port, folder=folder))
        return [mosquitto_path(), "-c", str(conf)]
    if peer in STARLING_VARIANTS:
        for durability in STARLING_VARIANTS[peer]:
            kept = ["--data-dir", str(folder / "data"), "--set", f"storage.durability={durability}"]
            options = [*kept, *UNBOUNDED, *options]
        if peer.startswith("starlingmq-auth"):
            options = [*guarded(folder), *options]
        if peer == "starlingmq-auth-forgets":
            options = [*options, "--set", "auth.password.remember=0"]
        scheme = "nats" if peer.startswith("starlingmq-nats") else "mqtt"
        return [sys.executable, "-m", "starlingmq", "serve", "--listen", f"{scheme}://127.0.0.1:{port}", *options]
    if peer in NATS_VARIANTS:
        more = [option.format(folder=folder) for option in NATS_VARIANTS[peer]]
        return [*PEERS["nats-server"].command(port, folder), *more]
    if peer in PEERS:
        return PEERS[peer].command(port, folder)
    if peer == "relay":
        return [sys.executable, "-m", "bench.relay", "--port", str(port), *options]
    raise PeerError(f"unknown peer {peer!r}")


def guarded(folder: Path) -> list[str]:
    """Return the options for passwords and rules."""
    users = PasswordFile()
    users.set(*LOGIN)
    users.write(folder / "passwords")
    (folder / "acl.yaml").write_text(RULES)
    return ["--set", f"auth.password.file={folder}/passwords", "--set", f"auth.acl.file={folder}/acl.yaml"]


def version(peer: str) -> str:
    """Return the version for the report. For starlingmq it includes whether the hot modules are compiled, on which the
    figures depend.
    """
    if peer.startswith("mosquitto"):
        shown = subprocess.run([mosquitto_path(), "-h"], capture_output=True, text=True, check=False).stdout
        return shown.splitlines()[0].split()[-1]
    if peer in PEERS:
        return PEERS[peer].version()
    return f"{starlingmq.__version__} ({'compiled' if starlingmq.compiled() else 'interpreted'})"


def raise_file_limit() -> int:
    """Raise the limit of open files of this process and its children to the system's maximum; return it."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def environment(peer: str, folder: Path) -> dict[str, str]:
    return {**os.environ, **(PEERS[peer].environment(folder) if peer in PEERS else {})}


@contextlib.contextmanager
def started(peer: str, core: int, options: list[str] | None = None) -> Iterator[Broker]:
    """Provide a new broker pinned to one core; at the end it is stopped, and killed if it does not stop."""
    with (
        tempfile.TemporaryDirectory(prefix="starlingmq-bench-") as name,
        running(peer, core, Path(name), options) as it,
    ):
        yield it


class Brokers:
    """Provides new brokers. ``keep`` names those that are reused until ``close``."""

    def __init__(self, keep: tuple[str, ...] = ()) -> None:
        self.keep = keep
        self.kept: dict[str, Broker] = {}
        self.stack = contextlib.ExitStack()

    @contextlib.contextmanager
    def started(self, peer: str, core: int, options: list[str] | None = None) -> Iterator[Broker]:
        if peer not in self.keep:
            with started(peer, core, options) as broker:
                yield broker
            return
        if peer not in self.kept:
            self.kept[peer] = self.stack.enter_context(started(peer, core, options))
        yield self.kept[peer]

    def close(self) -> None:
        self.stack.close()


@contextlib.contextmanager
def running(peer: str, core: int, folder: Path, options: list[str] | None = None) -> Iterator[Broker]:
    """Provide a broker whose files are in ``folder``, existing or new; stopped at the end unless it was killed."""
    with launched(peer, core, folder, lambda port: command(peer, port, folder, options or [])) as broker:
        yield broker


@contextlib.contextmanager
def launched(peer: str, core: int, folder: Path, arguments: Callable[[int], list[str]]) -> Iterator[Broker]:
    """Provide a broker with a custom command line for a port."""
    port, log = free_port(), folder / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            ["taskset", "-c", str(core), *arguments(port)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd=ROOT,
            env=environment(peer, folder),
        )
    try:
        wait_until_it_serves(peer, process, port, log)
        yield Broker(peer, process.pid, port, folder / "data")
    finally:
        stop(process)
        if peer in PEERS:
            PEERS[peer].ended()


def wait_until_it_serves(peer: str, process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    limit = time.monotonic() + START_TIMEOUT_S
    while process.poll() is None and time.monotonic() < limit:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1.0):
            return
        time.sleep(0.02)
    last = log.read_text(errors="replace").strip().splitlines()[-1:]
    raise PeerError(f"{peer} did not start: {last[0] if last else 'it said nothing'}")


def stop(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
