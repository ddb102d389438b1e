"""Reasons that gRPC gives for a failed call to etcd, in words for an operator. Reasons of etcd itself stay."""

from __future__ import annotations

import re
from typing import Final

CLOSED: Final = "the connection was closed"

WORDS: Final = (
    (re.compile(r"DNS resolution failed"), "its name cannot be resolved"),
    (re.compile(r"Connection refused"), "it refuses connections; check that it runs there"),
    (re.compile(r"No route to host|Network is unreachable|Host is unreachable"), "there is no route to it"),
    (re.compile(r"[Tt]imed out|Timeout occurred|Deadline Exceeded"), "no answer in time"),
    (re.compile(r"Ssl handshake failed|SSL_ERROR|CERTIFICATE|Handshake read failed"), "the TLS handshake failed"),
    (re.compile(r"Failed to connect to remote host|failed to connect to all addresses"), "it cannot be reached"),
    (re.compile(r"Socket closed|Stream removed|GOAWAY|[Kk]eepalive|ping timeout|too_many_pings"), CLOSED),
    (re.compile(r"Internal error from Core|Connection reset|Broken pipe|RST_STREAM|Channel closed|recvmsg"), CLOSED),
)
"""The first pattern that is found decides."""


def in_words(details: str) -> str:
    """``details``: of the failed call."""
    for pattern, words in WORDS:
        if pattern.search(details):
            return words
    return details.removeprefix("etcdserver: ")
