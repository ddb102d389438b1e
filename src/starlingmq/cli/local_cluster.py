"""The files of a cluster on one machine: a directory with a subdirectory per node, for its settings and data."""

from __future__ import annotations

import importlib.util
import random
import secrets
import socket
from collections.abc import Collection, Iterator
from contextlib import ExitStack, suppress
from itertools import islice
from pathlib import Path
from threading import Lock
from typing import Any, Final

import yaml

from starlingmq.cli.declare import CommandError

HOST: Final = "127.0.0.1"
SETTINGS: Final = "starlingmq.yaml"
SECRET_FILE: Final = "secret"  # noqa: S105 the name of a file
TOKEN_FILE: Final = "streams-token"  # noqa: S105 the name of a file
PORTS_A_NODE: Final = 4
COPIES: Final = 2  # with two nodes or more
OFFERS: Final = ("nats", "http", "streams")  # optional, in addition to MQTT; their ports are 400, 500, 600 above
PACKAGES: Final = {"http": ("litestar", "prometheus_client", "uvicorn"), "streams": ("pyarrow",)}
"""Modules that a listener needs beyond those that every cluster needs."""
NODES_MAX: Final = 50
# Below the ephemeral ports: a connection could otherwise take the port of a node that is down.
QUIET_PORTS: Final = range(12_000, 30_000, 32)


def prepare(directory: Path, count: int, base_port: int, offers: Collection[str] = ()) -> list[Path]:
    """Return the settings files of the nodes; they are created if there are none. Raises CommandError, OSError.

    Node i listens for clients on ``base_port + i``, for nodes 100 above that, and its etcd on 200 and 300 above; 0:
    free ports. ``offers`` are some of ``OFFERS``; they are added to settings that lack them.
    """
    paths = _prepare(directory, count, base_port)
    for offer in OFFERS:
        if offer in offers:
            free = free_ports(count) if base_port == 0 else []
            kind = PORTS_A_NODE + OFFERS.index(offer)
            for index, path in enumerate(paths):
                _offer(path, offer, free[index] if free else base_port + 100 * kind + index)
    return paths


def _offer(path: Path, offer: str, port: int) -> None:
    """Add a listener to the settings of a node, unless there is one of that kind."""
    settings: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    if offer == "streams":
        streams = settings.setdefault("streams", {})
        if "listen" in streams:
            return
        token = path.parent.parent / TOKEN_FILE
        if not token.exists():
            write_secret(token)
        streams |= {"listen": f"{HOST}:{port}", "token_file": str(token)}
    else:
        listeners = settings["listeners"]
        if any(
            str(each.get("url") if isinstance(each, dict) else each).startswith(f"{offer}://") for each in listeners
        ):
            return
        listeners.append(f"{offer}://{HOST}:{port}")
    path.write_text(yaml.safe_dump(settings, sort_keys=False), encoding="utf-8")


def write_secret(path: Path) -> None:
    """Write a random secret to a file that only its owner can read."""
    path.touch(mode=0o600)
    path.write_text(secrets.token_hex(32) + "\n", encoding="utf-8")


def settings_files(directory: Path) -> list[Path]:
    """Those of the nodes of an existing cluster, in their order."""
    return sorted(directory.glob(f"n*/{SETTINGS}"), key=lambda path: (len(path.parent.name), path))


def missing_packages(offer: str) -> list[str]:
    """The packages that a listener of this kind needs and that are not installed."""
    return [name for name in PACKAGES.get(offer, ()) if importlib.util.find_spec(name) is None]


def login_of(path: Path) -> str:
    """How one logs in at the dashboard of the node with this settings file."""
    api = (yaml.safe_load(path.read_text(encoding="utf-8")).get("auth") or {}).get("api") or {}
    if api.get("token_file"):
        return f"log in with a token of {api['token_file']}"
    if api.get("users"):
        return f"log in as {' or '.join(api['users'])}"
    return "no login: only this machine can reach it"


def streams_of(path: Path) -> str:
    """Where streams of the node with this settings file are read, and with which token; "": nowhere."""
    streams = yaml.safe_load(path.read_text(encoding="utf-8")).get("streams") or {}
    if not streams.get("listen"):
        return ""
    token = f" (token in {streams['token_file']})" if streams.get("token_file") else ""
    return f"{streams['listen']}{token}"


def _prepare(directory: Path, count: int, base_port: int) -> list[Path]:
    found = settings_files(directory)
    if found:
        if len(found) != count:
            raise CommandError(
                f"{directory} holds a cluster of {len(found)} nodes; give --nodes {len(found)}, or another directory"
            )
        return found
    if not 1 <= count <= NODES_MAX:
        raise CommandError(f"--nodes {count}: must be 1 to {NODES_MAX}")
    free = iter(free_ports(count * PORTS_A_NODE) if base_port == 0 else ())
    ports = [
        [base_port + node + 100 * which if base_port else next(free) for which in range(PORTS_A_NODE)]
        for node in range(count)
    ]
    if ports[-1][-1] > 65535:
        raise CommandError(f"--base-port {base_port}: too high, because the last port would be {ports[-1][-1]}")
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise CommandError(f"--dir {directory}: is no directory, or is below a file") from None
    secret = directory / SECRET_FILE
    write_secret(secret)
    members = [f"n{number}={HOST}:{each[3]}" for number, each in enumerate(ports, start=1)]
    return [
        _write(directory / f"n{number}", number, each, secret, members) for number, each in enumerate(ports, start=1)
    ]


def _write(directory: Path, number: int, ports: list[int], secret: Path, members: list[str]) -> Path:
    settings: dict[str, Any] = {
        "node": {"name": f"n{number}", "data_dir": str(directory / "data")},
        "listeners": [f"mqtt://{HOST}:{ports[0]}"],
        "cluster": {
            "enabled": True,
            "listen": f"{HOST}:{ports[1]}",
            "secret_file": str(secret),
            "copies": min(COPIES, len(members)),
            "etcd": {"client_port": ports[2], "peer_port": ports[3], "initial_members": members},
        },
    }
    directory.mkdir()
    path = directory / SETTINGS
    path.write_text(yaml.safe_dump(settings, sort_keys=False), encoding="utf-8")
    return path


def free_ports(count: int) -> list[int]:
    """Return ports on loopback that are free, and that no process gets twice while this one lives. Raises OSError."""
    with _one_call:
        free = list(islice(_ports, count))
    if len(free) < count:
        raise OSError("not enough free ports; give a --base-port")
    return free


def free_port() -> int:
    """Return one of them."""
    return free_ports(1)[0]


def _free_ports() -> Iterator[int]:
    """The process that has the first port of a block has the block. The port is bound only, so it accepts nothing."""
    with ExitStack() as held:
        for block in random.SystemRandom().sample(QUIET_PORTS, len(QUIET_PORTS)):
            guard = held.enter_context(socket.socket())
            with suppress(OSError):
                guard.bind((HOST, block))
                yield from filter(_is_free, range(block + 1, block + QUIET_PORTS.step))


def _is_free(port: int) -> bool:
    with suppress(OSError), socket.create_server((HOST, port)):
        return True
    return False


_ports: Final = _free_ports()
_one_call: Final = Lock()
