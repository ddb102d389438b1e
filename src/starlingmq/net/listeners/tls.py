"""TLS for listeners: the server's context from the settings."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Final

from starlingmq.config.tls_section import TlsConfig
from starlingmq.net.listeners.der import DerError
from starlingmq.net.listeners.revocation_list import Identity, revoked_by

VERSIONS: Final = {"1.2": "TLSv1_2", "1.3": "TLSv1_3"}  # names in ssl.TLSVersion, which loads OpenSSL


class TlsError(Exception):
    """A certificate or key cannot be used; the message is one line that names the file at fault."""


def server_context(tls: TlsConfig, protocols: list[str]) -> ssl.SSLContext:
    """A server context that offers ``protocols`` by ALPN. A client that names none of them, or uses no ALPN, is
    accepted.

    Without ``tls.ca`` no client certificate is requested. With it, a client certificate must be valid if there is one;
    with ``tls.require_client_cert`` there must be one. Raises TlsError.
    """
    from starlingmq.net.listeners.tls_objects import ServerContext  # which loads OpenSSL

    context = ServerContext(ssl.PROTOCOL_TLS_SERVER)
    context.whole_subject = tls.use_subject_as_username
    context.minimum_version = ssl.TLSVersion[VERSIONS[tls.min_version]]
    # Each renegotiation costs the server a handshake, while the client only has to request it.
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    # A client keeps its connection, and gets a new ticket with the next one. A second ticket costs the server as much.
    context.num_tickets = 1
    context.set_alpn_protocols(protocols)
    load_certificate(context, tls)
    _set_client_verification(context, tls)
    return context


def load_certificate(context: ssl.SSLContext, tls: TlsConfig) -> None:
    """Load the certificate from the files as they are now; open connections keep theirs."""
    try:
        load_key_pair(context, tls.cert, tls.key, tls.key_password or "", "set tls.key_password of the listener")
    except (OSError, ValueError) as error:
        files = tls.cert if tls.key is None else f"{tls.cert} with key {tls.key}"
        raise TlsError(f"certificate {files}: {_reason(error)}") from error


def load_key_pair(context: ssl.SSLContext, cert: str, key: str | None, password: str = "", remedy: str = "") -> None:
    """Load a certificate with its key. An encrypted key is an error instead of a prompt at the terminal.

    Raises OSError and ValueError, and TlsError for a key with a passphrase that is not known; ``remedy``: what to do
    in place of decrypting it.
    """
    asked = False

    def passphrase() -> str:
        nonlocal asked
        asked = True
        return password

    try:
        context.load_cert_chain(cert, key, passphrase)
    except (OSError, ValueError) as error:
        if not asked:
            raise
        what = "has another passphrase than tls.key_password" if password else "has a passphrase"
        decrypt = "decrypt it: openssl pkey -in KEY -out NEW"
        todo = f"{remedy}, or {decrypt}" if remedy else decrypt
        raise TlsError(f"the private key in {key or cert} {what}; {todo}") from error


def _set_client_verification(context: ssl.SSLContext, tls: TlsConfig) -> None:
    if tls.ca is None:
        if tls.require_client_cert:
            raise TlsError("require_client_cert needs ca, the CA certificates used to verify client certificates")
        if tls.crl:
            raise TlsError("crl needs ca, the CA certificates used to verify client certificates")
        return
    try:
        context.load_verify_locations(tls.ca)
    except (OSError, ValueError) as error:
        raise TlsError(f"CA certificates {tls.ca}: {_reason(error)}") from error
    for path in tls.crl:
        try:
            context.load_verify_locations(path)
        except (OSError, ValueError) as error:
            raise TlsError(f"revocation list {path}: {_reason(error)}") from error
    if tls.crl:
        context.verify_flags |= ssl.VerifyFlags.VERIFY_CRL_CHECK_LEAF
    context.verify_mode = ssl.CERT_REQUIRED if tls.require_client_cert else ssl.CERT_OPTIONAL


def revoked_certificates(tls: TlsConfig) -> frozenset[Identity]:
    """The certificates that the revocation lists name. Raises TlsError."""
    found: frozenset[Identity] = frozenset()
    for path in tls.crl:
        try:
            found |= revoked_by(Path(path).read_bytes())
        except (OSError, DerError) as error:
            raise TlsError(f"revocation list {path}: {_reason(error)}") from error
    return found


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return f"not usable PEM files ({error.reason or error})"
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
