"""TLS between nodes: each side shows a certificate of the cluster's authority, and checks the other's."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import NamedTuple

from starlingmq.config.cluster_section import ClusterTlsConfig
from starlingmq.net.listeners.tls import TlsError, load_key_pair


class PeerTls(NamedTuple):
    """Contexts of connections that come in and go out; None: without TLS."""

    listener: ssl.SSLContext | None
    dialler: ssl.SSLContext | None


def peer_tls(settings: ClusterTlsConfig) -> PeerTls:
    """Raises TlsError."""
    cert, key, ca = settings.cert, settings.key, settings.ca
    if cert is None or key is None or ca is None:
        return PeerTls(None, None)
    for path in (key, cert, ca):
        try:
            content = Path(path).read_bytes()
        except OSError as error:
            raise TlsError(f"cluster.tls: {path}: {error.strerror}") from error
        if b"-----BEGIN " not in content:
            raise TlsError(f"cluster.tls: {path} is not a PEM file")
    listener, dialler = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    for context in (listener, dialler):
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
        try:
            load_key_pair(context, cert, key)
            context.load_verify_locations(ca)
        except TlsError as error:
            raise TlsError(f"cluster.tls: {error}") from error
        except (OSError, ValueError) as error:
            raise TlsError(f"cluster.tls: {cert}, {key} and {ca} cannot be used: {error}") from error
        context.verify_mode = ssl.CERT_REQUIRED
    listener.num_tickets = 0  # no session is resumed, and a quiet connection stays quiet
    return PeerTls(listener, dialler)
