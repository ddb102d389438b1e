"""Supervises the bulk process, which serves streams to readers (starlingmq.bulk.bulk_service): starts it, restarts it
when it dies, and ends it.
"""

from __future__ import annotations

import asyncio
import hmac
import importlib.util
import logging
import os
import secrets
import sys
from asyncio.subprocess import PIPE, Process
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import msgspec

from starlingmq.config.cluster_section import cluster_secret, split_address
from starlingmq.config.networks import is_loopback, is_wildcard
from starlingmq.config.settings import Config, ConfigError
from starlingmq.config.streams_section import streams_token

log = logging.getLogger("starlingmq.streams")

TOKEN_FILE: Final = "streams.token"  # noqa: S105 the name of a file
START_SECONDS: Final = 60.0
STOP_SECONDS: Final = 2.0
AGAIN_SECONDS: Final = 1.0  # before the restart of a process that died


def _kept_token(path: Path) -> bytes:
    """The stored token, created at the first start, readable by its owner only. Raises OSError."""
    with suppress(FileExistsError):
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(fd, "w", encoding="ascii") as file:
            file.write(secrets.token_hex(32) + "\n")
        log.info("the token for readers of streams (option token) is in %s", path)
    path.chmod(0o600)
    return path.read_bytes().strip()


def check_bulk(config: Config) -> None:
    """Raises ConfigError for settings with which the process would not start. Nothing is written."""
    if not config.streams.listen:
        return
    if importlib.util.find_spec("pyarrow") is None:
        raise ConfigError(
            "streams.listen: needs pyarrow, which Debian packages and images do not contain; install a wheel with the "
            "extra [streams] (docs/DEPLOY.md), or leave it empty"
        )
    host, _ = split_address(config.streams.listen, "streams.listen")
    if not is_loopback(host) and not config.cluster.tls.cert and not config.cluster.allow_insecure:
        raise ConfigError(
            f"streams.listen: {config.streams.listen} is reachable from other machines; set "
            "cluster.tls, or cluster.allow_insecure: true if all of them are trusted"
        )
    if not _set_token(config) and (config.cluster.enabled or not is_loopback(host)):
        raise ConfigError(
            "streams.token: readers need a token; set streams.token or streams.token_file, the same on all nodes"
        )


def _set_token(config: Config) -> bytes:
    """The token of the settings; empty: none. Raises ConfigError."""
    token = streams_token(config.streams)
    if token and hmac.compare_digest(token, cluster_secret(config.cluster)):
        raise ConfigError(
            "streams.token: must differ from the cluster secret, because readers know it; set another one"
        )
    return token


class BulkProcess:
    """``start`` raises ConfigError for unusable settings. ``address`` is where readers reach it."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.address = ""
        self.pid = 0
        self._process: Process | None = None
        self._watch: asyncio.Task[None] | None = None
        self._stopping = False

    async def start(self) -> None:
        streams = self.config.streams
        check_bulk(self.config)
        host, port = split_address(streams.listen, "streams.listen")
        settings = self._settings(host, port)
        bound = await self._begin(settings)
        named = streams.advertise or (f"[{host}]:{bound}" if ":" in host else f"{host}:{bound}")
        if named.endswith(":0"):  # a free port was asked for
            named = f"{named.removesuffix(':0')}:{bound}"
        if is_wildcard(host) and not streams.advertise:
            own = split_address(self.config.cluster.listen, "cluster.listen")[0] if self.config.cluster.enabled else ""
            named = f"{own if own and not is_wildcard(own) else '127.0.0.1'}:{bound}"
        self.address = named
        settings["port"] = bound  # a restart uses the same port
        self._watch = asyncio.create_task(self._follow(settings))

    def _settings(self, host: str, port: int) -> dict[str, Any]:
        config = self.config
        token = self._token()
        tls = config.cluster.tls
        pems = {}
        for name, path in (("cert", tls.cert), ("key", tls.key)):
            try:
                pems[name] = Path(path).read_text(encoding="utf-8") if path else ""
            except OSError as error:
                raise ConfigError(f"cluster.tls.{name}: {path} cannot be read: {error.strerror}") from error
        assert config.node.data_dir is not None
        return {
            "data_dir": str(Path(config.node.data_dir).absolute()),
            "node": config.node.name,
            "host": host,
            "port": port,
            "token": token.decode(),
            "memory": config.streams.memory,
            "calls": config.streams.calls,
            "nice": config.streams.nice,
            "processors": config.streams.processors,
            **pems,
        }

    def _token(self) -> bytes:
        """The token that readers must present. Raises ConfigError."""
        config = self.config
        token = _set_token(config)
        if token:
            return token
        assert config.node.data_dir is not None
        path = Path(config.node.data_dir).absolute() / TOKEN_FILE
        try:
            return _kept_token(path)
        except OSError as error:
            raise ConfigError(
                f"streams.token: {path}: {error.strerror}; make the file accessible, or set streams.token"
            ) from error

    async def _begin(self, settings: dict[str, Any]) -> int:
        """Start it and return its port. Raises ConfigError with its output if it does not start."""
        process = self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "starlingmq.bulk.bulk_service", stdin=PIPE, stdout=PIPE, stderr=PIPE
        )
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        process.stdin.write(msgspec.json.encode(settings) + b"\n")
        try:
            async with asyncio.timeout(START_SECONDS):
                word, _, number = (await process.stdout.readline()).decode().partition(" ")
        except TimeoutError:
            word = number = ""
        if word != "ready":
            with suppress(ProcessLookupError):
                process.kill()
            said = (await process.stderr.read()).decode(errors="replace").strip().splitlines()
            raise ConfigError(
                said[-1]
                if said
                else ("streams.listen: the process that serves bulk readers did not start; see its log lines above")
            )
        self.pid = process.pid
        return int(number)

    async def _follow(self, settings: dict[str, Any]) -> None:
        while not self._stopping:
            process = self._process
            assert process is not None and process.stderr is not None
            async for line in process.stderr:
                log.warning("%s", line.decode(errors="replace").rstrip())
            code = await process.wait()
            self.pid = 0
            if self._stopping:
                return
            log.error("the process that serves bulk readers ended with exit status %d; it is restarted", code)
            await asyncio.sleep(AGAIN_SECONDS)
            try:
                await self._begin(settings)
            except ConfigError as error:
                log.error("%s", error)

    async def stop(self) -> None:
        self._stopping = True
        process = self._process
        if process is None or process.stdin is None:
            return
        process.stdin.close()
        try:
            async with asyncio.timeout(STOP_SECONDS):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()
        if self._watch is not None:
            self._watch.cancel()
            with suppress(asyncio.CancelledError):
                await self._watch
