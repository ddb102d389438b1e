"""The address of a broker, from its URL, and its TLS settings."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, replace
from typing import Final
from urllib.parse import unquote, urlsplit

DEFAULT_PORTS: Final = {"mqtt": 1883, "mqtts": 8883, "ws": 80, "wss": 443}
ALIASES: Final = {"tcp": "mqtt", "ssl": "mqtts", "tls": "mqtts"}


@dataclass(frozen=True, slots=True)
class Endpoint:
    """``path`` is the socket path for ``unix``, the HTTP path for ``ws`` and ``wss``, and unused otherwise."""

    scheme: str
    host: str
    port: int
    path: str
    username: str | None = None
    password: str | None = None

    @property
    def secure(self) -> bool:
        return self.scheme in ("mqtts", "wss")

    @property
    def web(self) -> bool:
        return self.scheme in ("ws", "wss")

    def __str__(self) -> str:
        if self.scheme == "unix":
            return f"unix://{self.path}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}{self.path if self.web else ''}"


def parse_url(url: str, port: int | None = None) -> Endpoint:
    """Parse ``mqtt://user:password@host:port``, also mqtts, ws, wss, ``unix:///path``; or a host. ``port``: in place of
    that of the URL. Raises ValueError with a sentence.
    """
    parts = urlsplit(url if "://" in url else f"mqtt://{url}")
    scheme = ALIASES.get(parts.scheme, parts.scheme)
    if scheme == "unix":
        path = unquote(parts.netloc + parts.path)
        if not path:
            raise ValueError(f"{url}: a unix URL needs a path, as in unix:///run/starlingmq.sock")
        return Endpoint(scheme, "", 0, path)
    if scheme not in DEFAULT_PORTS:
        raise ValueError(f"{url}: the scheme must be mqtt, mqtts, ws, wss or unix, not {parts.scheme!r}")
    try:
        port = port or parts.port or DEFAULT_PORTS[scheme]
    except ValueError:
        raise ValueError(f"{url}: the port must be a number between 1 and 65535") from None
    if not 1 <= port <= 65_535:
        raise ValueError(f"{url}: the port must be a number between 1 and 65535, not {port}")
    path = parts.path + (f"?{parts.query}" if parts.query else "")
    if scheme in ("ws", "wss"):
        path = path if path not in ("", "/") else "/mqtt"
    return Endpoint(scheme, parts.hostname or "localhost", port, path, _plain(parts.username), _plain(parts.password))


def referred(home: Endpoint, reference: str) -> Endpoint | None:
    """Return the first server of a Server Reference, with the scheme of ``home``; None for an unknown form."""
    first = reference.split()[0] if reference.split() else ""
    parts = urlsplit(f"//{first}")
    try:
        port = parts.port
    except ValueError:
        return None
    if not parts.hostname or parts.path or home.scheme == "unix":
        return None
    return replace(home, host=parts.hostname, port=port or DEFAULT_PORTS[home.scheme])


def _plain(text: str | None) -> str | None:
    return None if text is None else unquote(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """Paths of PEM files. ``ca`` empty: the system's authorities. ``insecure``: do not check the host name in the
    certificate; without a ``ca``, do not check the issuer either. ``alpn``: the application protocols to offer.
    """

    ca: str = ""
    cert: str = ""
    key: str = ""
    insecure: bool = False
    alpn: tuple[str, ...] = ()

    def context(self) -> ssl.SSLContext:
        """Build the SSL context. Raises OSError or ssl.SSLError for unusable files."""
        for path in (self.ca, self.cert, self.key):
            if path:
                with open(path, "rb"):  # the error of ``ssl`` does not name the missing file
                    pass
        context = ssl.create_default_context(cafile=self.ca or None)
        if self.insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_REQUIRED if self.ca else ssl.CERT_NONE
        if self.cert:
            context.load_cert_chain(self.cert, self.key or None)
        if self.alpn:
            context.set_alpn_protocols(list(self.alpn))
        return context
