"""Checks of ``starlingmq doctor``: settings that do not fit each other, or that production needs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Final

from starlingmq import compiled
from starlingmq.cli.doctor_checks import CheckResult, fault, good, risk
from starlingmq.cli.start_check import check_start
from starlingmq.config.api_section import API_SCHEMES
from starlingmq.config.networks import is_local
from starlingmq.config.settings import Config, ConfigError, misspelled_variables
from starlingmq.net.listeners.tls import TlsError
from starlingmq.net.listeners.urls import ListenerError
from starlingmq.storage.data_dir import DataDirError

SUBJECT: Final = "settings"
PLAIN: Final = ("mqtt", "ws", "nats", "nats+ws", "http")  # without TLS


def settings(config: Config) -> Iterator[CheckResult]:
    refused, warnings = _checked(config)
    if refused:
        yield fault(SUBJECT, refused, "the broker does not start until this is corrected")
    else:
        yield good(SUBJECT, "the broker accepts them")
    for warning in warnings:
        text, _, advice = warning.partition("; ")
        yield risk(SUBJECT, text, advice)
    for name, meant in misspelled_variables(os.environ):
        yield risk(SUBJECT, f"the variable {name} is ignored", f"rename it to {meant}, if it was meant")
    yield from _packages(config)
    yield from _storage(config)
    yield from _listeners(config)
    yield from _cluster(config)


def _checked(config: Config) -> tuple[str, list[str]]:
    """The error with which the broker would refuse to start ("": none), and warnings."""
    try:
        return "", check_start(config)
    except (ConfigError, ListenerError, TlsError, DataDirError) as error:
        return str(error), []
    except OSError as error:
        return f"{error.filename}: {error.strerror}" if error.filename else str(error), []


def _packages(config: Config) -> Iterator[CheckResult]:
    needed = {"grpc": ("cluster", config.cluster.enabled), "litestar": ("http", _has_api(config))}
    for module, (extra, wanted) in needed.items():
        if wanted and find_spec(module) is None:
            package = ", or Debian's package starlingmq-cluster" if extra == "cluster" else ""
            lacks = f"they need the Python package {module}, which is not installed"
            yield fault(SUBJECT, lacks, f"install the extra [{extra}]{package}")
    if not compiled():
        yield risk(
            "program",
            "it is not compiled, and several times slower than it could be",
            "install a wheel for this Python, or install from the sources with a C compiler",
        )


def _storage(config: Config) -> Iterator[CheckResult]:
    if config.node.data_dir is None:
        yield risk(
            SUBJECT,
            "node.data_dir is empty: a restart loses sessions, waiting messages and retained messages",
            "set node.data_dir, unless that is intended",
        )


def _listeners(config: Config) -> Iterator[CheckResult]:
    public = [each for each in config.listeners if not is_local(each.url)]
    for listener in public:
        scheme = listener.url.partition("://")[0]
        if scheme in PLAIN and not (listener.proxy_protocol or listener.trusted_proxies):
            yield risk(
                SUBJECT,
                f"{listener.url} is open to other machines without TLS: passwords and messages can be read on the way",
                "use a listener with TLS (mqtts, wss, tls, https), or a balancer that ends TLS (docs/DEPLOY.md)",
            )
    if public and not config.limits.connections_per_address:
        yield risk(
            SUBJECT,
            "limits.connections_per_address is off: one address can take all connections",
            "set it, or leave it off behind a balancer that limits addresses",
        )
    if not _has_api(config):
        yield risk(
            SUBJECT,
            "there is no HTTP listener: no metrics, no dashboard, no /health/ready for a balancer",
            "add http://127.0.0.1:8080 to the listeners, and auth.api.token_file",
        )


def _cluster(config: Config) -> Iterator[CheckResult]:
    members = config.cluster.etcd.initial_members
    if config.cluster.enabled and members and len(members) % 2 == 0:
        yield risk(
            SUBJECT,
            f"cluster.etcd.initial_members has {len(members)} members: one more would let the same number of them "
            "fail, one less as well",
            "run etcd on an odd number of nodes, such as three",
        )
    if config.cluster.enabled and config.node.data_dir is None:
        yield risk(
            SUBJECT,
            "a cluster node without node.data_dir: messages on their way to other nodes are lost with the process",
            "set node.data_dir",
        )


def _has_api(config: Config) -> bool:
    return any(listener.url.partition("://")[0] in API_SCHEMES for listener in config.listeners)
