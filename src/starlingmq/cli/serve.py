"""``starlingmq serve``: run one broker until a signal stops it.

It prints one line on standard output, ``ready`` and the addresses; all other output goes to stderr. SIGTERM and SIGINT
cause a graceful stop; a second one ends the process immediately. SIGUSR2 means lame duck mode, as in nats-server: a
graceful stop that closes NATS clients over a period. SIGHUP reloads the configuration. An operator's restart is a
graceful stop, after which the process runs the same command again.
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import select
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from starlingmq.cli.announce import announced
from starlingmq.cli.command_errors import explain
from starlingmq.cli.early_etcd import begin_etcd
from starlingmq.cli.serve_options import OVERRIDES, ServeOptions
from starlingmq.config.settings import Config, ConfigError, exposed_secrets, load_config, misspelled_variables
from starlingmq.net.process import make_files_private, raise_file_limit, tune_allocator, umask_of_start
from starlingmq.node.node_copies import TakenOver

if TYPE_CHECKING:
    from starlingmq.net.etcd.etcd_access import EtcdAccess
    from starlingmq.node.node_process import Node

log = logging.getLogger("starlingmq")

UVLOOP_IS_BETTER: Final = ("wss://", "tls://", "nats+wss://")
"""Client listeners with TLS. The event loop ``epoll`` uses asyncio's TLS; measured, uvloop's takes less than half of
the CPU per message, and 46 instead of 278 KiB per connection.
"""

STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
RELOADS: Final = {signal.SIGHUP}  # blocked until the broker serves, which then reloads if one has come


class StoppedError(Exception):
    """The broker has stopped by itself; one line."""


def run(options: ServeOptions) -> None:
    """Run one broker, or all of ``--workers``, until a signal."""
    signal.pthread_sigmask(signal.SIG_BLOCK, RELOADS)
    overrides = list(options.set_ or ())
    inherited: list[str] = json.loads(os.environ.pop(OVERRIDES, "[]"))
    flags = {
        "listeners": options.listen,
        "node.data_dir": options.data_dir,
        "node.name": options.name,
        "cluster.enabled": options.cluster is not None,
        "cluster.listen": options.cluster,
        "cluster.etcd.join": options.join,
        "cluster.etcd.endpoints": options.etcd,
        "log.level": options.log_level or ("debug" if options.debug else None),
    }
    # JSON is YAML with all strings quoted: a directory called 2024 remains a string.
    overrides += [f"{path}={json.dumps(value)}" for path, value in flags.items() if value]
    for warning in exposed_secrets(overrides):
        print(f"warning: {warning}", file=sys.stderr)
    overrides += inherited

    def load() -> Config:
        return load_config(options.config, overrides, os.environ)

    tune_allocator()
    raise_file_limit()
    loaded = load()
    if loaded.node.data_dir is not None and loaded.auth.password.first_user:  # the password file may be there
        from starlingmq.storage.data_dir import refuse_unusable

        refuse_unusable(Path(loaded.node.data_dir))
    _make_first_user(loaded)
    make_files_private()  # the storage engine, etcd, and the keys of workers create files by the umask
    if options.workers is not None:
        from starlingmq.cli.workers import serve

        asyncio.run(serve(loaded, ["-c", options.config] if options.config else [], overrides, options.workers))
        return
    if sys.stdin is not None and sys.stdin.isatty():
        from starlingmq.cli.first_operator import offer_operator  # late: a service has no terminal

        offer_operator(loaded)
    for name, meant in misspelled_variables(os.environ):
        print(f"warning: the variable {name} is ignored; {meant} is the setting", file=sys.stderr)
    with asyncio.Runner(loop_factory=event_loop_factory(loaded), debug=False) as runner:
        again = runner.run(_serve(loaded, load, options.config or ""))
    if again:  # in the same process, which whatever watches it keeps, with the program as it is installed now
        with umask_of_start():
            os.execve(sys.executable, sys.orig_argv, {**os.environ, OVERRIDES: json.dumps(inherited)})  # noqa: S606 itself


def _make_first_user(config: Config) -> None:
    """Create the first user if the settings name one and there is no password file. The password is shown only here."""
    if not config.auth.password.first_user:
        return
    try:
        from starlingmq.auth.first_user import make_first_user
    except ImportError as error:
        raise ConfigError(f"auth.password.first_user: {error}; run pip install '.[auth]' in the sources") from None
    password = make_first_user(config.auth.password)
    if password is not None:
        print(
            f"first user: {config.auth.password.first_user}, password: {password} (shown only once; "
            f"{config.auth.password.file} stores its hash; change it with starlingmq passwd)",
            file=sys.stderr,
            flush=True,
        )


def event_loop_factory(config: Config) -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return the factory of the event loop that ``node.event_loop`` names; None for asyncio's default."""
    name = config.node.event_loop
    if name == "auto":
        better = any(listener.url.startswith(UVLOOP_IS_BETTER) for listener in config.listeners)
        name = "epoll" if not better and hasattr(select, "epoll") else "auto"
    if name == "asyncio":
        return None
    if name == "epoll":
        if not hasattr(select, "epoll"):
            raise ConfigError("node.event_loop: this system has no epoll; set node.event_loop: auto")
        from starlingmq.net.broker_loop import BrokerLoop

        return BrokerLoop
    try:
        import uvloop
    except ImportError:
        if name == "uvloop":
            raise ConfigError(
                "node.event_loop: uvloop is not installed; install it, or set node.event_loop: auto"
            ) from None
        return None
    return uvloop.new_event_loop


async def _serve(config: Config, load: Callable[[], Config], settings_file: str) -> bool:
    """Returns whether an operator has asked for a restart."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in STOP_SIGNALS:
        # Once: without the handler, the next signal ends the process.
        loop.add_signal_handler(number, _stop_once, loop, stop)
    etcd = await begin_etcd(config)
    try:
        return await _serve_until(stop, config, load, settings_file, etcd)
    finally:
        if etcd is not None:
            await etcd.stop()  # unless the node has


async def _serve_until(
    stop: asyncio.Event, config: Config, load: Callable[[], Config], settings_file: str, etcd: EtcdAccess | None
) -> bool:
    from starlingmq.node.node_process import Node  # late: help and setting errors do not need the whole broker

    loop = asyncio.get_running_loop()
    again = True
    while again and not stop.is_set():
        node = Node(config, settings_file, etcd)
        etcd = None
        node.load = load
        node.check_start = partial(_check_start, load)
        stopping = loop.create_task(stop.wait())
        with announced(config.node.name, config.node.data_dir), suppress(TakenOver):
            await _run(node, loop, stopping, load)
        again = node.taken_over and not node.restarts
        config = node.config
        gc.unfreeze()
    if node.problem:
        raise StoppedError(node.problem)
    return node.restarts and not stop.is_set()


async def _run(
    node: Node, loop: asyncio.AbstractEventLoop, stopping: asyncio.Task[bool], load: Callable[[], Config]
) -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, RELOADS)  # also while it starts again
    starting = loop.create_task(node.start())  # a cluster member may wait a long time for others
    await asyncio.wait([stopping, starting], return_when=asyncio.FIRST_COMPLETED)
    if starting.done():
        starting.result()
        loop.add_signal_handler(signal.SIGHUP, _reload, node, load)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, RELOADS)
        loop.add_signal_handler(signal.SIGUSR2, _lame_duck, loop, node)
        if node.is_open:
            log.info("nobody has to log in here; to change that: starlingmq ctl user add NAME --api operator")
        print("ready", *node.addresses, flush=True)
        closed = loop.create_task(node.wait_closed())
        await asyncio.wait([stopping, closed], return_when=asyncio.FIRST_COMPLETED)
        closed.cancel()
    starting.cancel()
    stopping.cancel()
    await asyncio.gather(starting, stopping, return_exceptions=True)
    signal.pthread_sigmask(signal.SIG_BLOCK, RELOADS)  # one that comes now would end the process before it runs again
    await node.stop()


def _check_start(load: Callable[[], Config]) -> None:
    """Raises the error with which the process would end if it started again now, as ``check_start``."""
    from starlingmq.cli.start_check import check_start  # late, as above

    check_start(load())


def _stop_once(loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> None:
    for number in STOP_SIGNALS:
        loop.remove_signal_handler(number)
        signal.signal(number, signal.SIG_DFL)
    stop.set()


def _lame_duck(loop: asyncio.AbstractEventLoop, node: Node) -> None:
    loop.remove_signal_handler(signal.SIGUSR2)
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    leaving = loop.create_task(node.lame_duck())
    leaving.add_done_callback(lambda task: task.cancelled() or task.result())


def _reload(node: Node, load: Callable[[], Config]) -> None:
    try:
        node.reload(load())
    except Exception as error:
        log.error("the settings were not changed: %s", explain(error)[0])
        return
    later = ", ".join(node.restart_needed())
    log.info("settings reloaded%s", f"; these need a restart: {later}" if later else "")
