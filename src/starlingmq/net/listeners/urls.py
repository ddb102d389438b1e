"""Listener URLs, parsed and checked. Everything that can be wrong without opening a socket is found here.

| URL | protocol | default port |
|---|---|---|
| ``mqtt://host:port`` | MQTT over TCP | 1883 |
| ``mqtts://host:port`` | MQTT over TLS | 8883 |
| ``ws://host:port/path`` | MQTT over WebSocket | 80 |
| ``wss://host:port/path`` | MQTT over WebSocket over TLS | 443 |
| ``unix:///path`` | MQTT over a Unix stream socket | |
| ``nats://host:port`` | NATS over TCP | 4222 |
| ``tls://host:port`` | NATS, with TLS from the first INFO on | 4222 |
| ``nats+ws://host:port/path`` | NATS over WebSocket | 80 |
| ``nats+wss://host:port/path`` | NATS over WebSocket over TLS | 443 |
| ``http://host:port`` | HTTP: API, metrics, dashboard | 80 |
| ``https://host:port`` | the same over TLS | 443 |

No host means all addresses of the machine; port 0 means a free port, the same one on all addresses of the host; no path
with WebSocket means ``/mqtt``, with NATS over WebSocket ``/``. The path of a WebSocket may end with ``*``, which stands
for any rest.
"""

from __future__ import annotations

from typing import Final, NamedTuple
from urllib.parse import urlsplit

from starlingmq.config.networks import Network, parse_networks
from starlingmq.config.secret_masking import without_login
from starlingmq.config.settings import ListenerConfig
from starlingmq.config.tls_section import TlsConfig

DEFAULT_PORTS: Final = {
    "mqtt": 1883,
    "mqtts": 8883,
    "ws": 80,
    "wss": 443,
    "nats": 4222,
    "tls": 4222,
    "nats+ws": 80,
    "nats+wss": 443,
    "http": 80,
    "https": 443,
}
SCHEMES: Final = (*DEFAULT_PORTS, "unix")
DEFAULT_PATHS: Final = {"ws": "/mqtt", "wss": "/mqtt", "nats+ws": "/", "nats+wss": "/"}
DIRECT: Final = ("mqtt", "mqtts", "nats", "unix")  # bytes are MQTT, or NATS, as they come from the socket or from TLS
ENCRYPTED: Final = ("mqtts", "wss", "tls", "nats+wss", "https")

UNIX_PATH_MAX: Final = 107
"""Bytes of a socket's file name that fit into ``struct sockaddr_un`` with its final NUL."""


class ListenerError(Exception):
    """A listener URL is invalid or cannot be opened; the message is one line that begins with the URL."""


class ListenerSpec(NamedTuple):
    """A parsed listener URL. ``host`` is "" for all addresses; ``path`` is the URL path, or the socket's file."""

    scheme: str
    host: str = ""
    port: int = 0
    path: str = ""
    tls: TlsConfig | None = None
    max_connections: int = 0
    reuse_port: bool = False
    advertise: str = ""
    origins: frozenset[str] = frozenset()
    trusted_proxies: tuple[Network, ...] = ()
    proxy_protocol: tuple[Network, ...] = ()
    paths: tuple[str, ...] = ()
    subprotocol_optional: bool = False

    def __str__(self) -> str:
        if self.scheme == "unix":
            return f"unix://{self.path}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}{self.path}"


def parse_listener(config: ListenerConfig) -> ListenerSpec:
    """Parse a listener's settings. Raises ListenerError."""
    try:
        spec = _parse(config.url)
        _check_tls(spec.scheme, config.tls)
        origins = _origins(spec.scheme, config.origins)
        paths = _paths(spec.scheme, config.paths)
    except ValueError as error:
        url = without_login(config.url)
        raise ListenerError(f"{url if url.isprintable() else repr(url)}: {error}") from error
    return spec._replace(
        tls=config.tls,
        max_connections=config.max_connections,
        reuse_port=config.reuse_port,
        advertise=config.advertise,
        origins=origins,
        trusted_proxies=parse_networks(config.trusted_proxies, "trusted_proxies"),
        proxy_protocol=parse_networks(config.proxy_protocol, "proxy_protocol"),
        paths=paths,
        subprotocol_optional=config.subprotocol == "optional",
    )


def _origins(scheme: str, origins: tuple[str, ...]) -> frozenset[str]:
    """As browsers write them (RFC 6454, 6.2): in lower case, without the default port of the scheme."""
    if origins and not scheme.endswith(("ws", "wss")):
        raise ValueError("origins are supported by WebSocket listeners only")
    found = set()
    for origin in origins:
        parts = urlsplit(origin.lower())
        if (
            parts.scheme not in ("http", "https")
            or not parts.netloc
            or origin.lower() != f"{parts.scheme}://{parts.netloc}"
        ):
            raise ValueError(
                f"{origin!r} is not an origin: expected scheme, host and optional port, as in "
                "https://app.example.org:8443"
            )
        found.add(origin.lower().removesuffix(":443" if parts.scheme == "https" else ":80"))
    return frozenset(found)


def _paths(scheme: str, paths: tuple[str, ...]) -> tuple[str, ...]:
    if paths and scheme not in DEFAULT_PATHS:
        raise ValueError("paths are supported by WebSocket listeners only")
    for path in paths:
        if not path.startswith("/") or not path.isprintable() or any(sign in path for sign in " ?#"):
            raise ValueError(f"{path!r} is not a path: it must start with / and have no blank, ? or #")
    return paths


def _parse(url: str) -> ListenerSpec:
    scheme, separator, rest = url.partition("://")
    if not separator or scheme not in SCHEMES:
        raise ValueError("a listener URL must start with one of " + ", ".join(f"{known}://" for known in SCHEMES))
    if not url.isprintable() or " " in url:
        raise ValueError("a listener URL must not contain blanks or control characters")
    if scheme == "unix":
        return ListenerSpec(scheme, path=_unix_path(rest))
    host, port, path = _split(url)
    if port is None:
        port = DEFAULT_PORTS[scheme]
    if scheme in DEFAULT_PATHS:
        return ListenerSpec(scheme, host, port, path or DEFAULT_PATHS[scheme])
    if path not in ("", "/"):
        raise ValueError(f"only ws:// and wss:// listeners have a path; remove {path}")
    return ListenerSpec(scheme, host, port)


def _split(url: str) -> tuple[str, int | None, str]:
    """Host, port and path of a URL that is not a Unix socket's."""
    authority = url.partition("://")[2].partition("/")[0]
    if authority.count(":") > 1 and "[" not in authority:
        raise ValueError("an IPv6 address needs brackets, as in mqtt://[::1]:1883")
    if "@" in authority:
        raise ValueError("a listener URL must not contain a user name or password")
    parts = urlsplit(url)
    if parts.query or parts.fragment:
        raise ValueError("a listener URL must not contain a ?query or #fragment")
    host = parts.hostname or ""
    if host.isdigit():
        raise ValueError(f"{host} is not a host; for this port on all addresses, write {parts.scheme}://:{host}")
    try:
        port = parts.port
    except ValueError:
        raise ValueError("the port must be a number from 0 to 65535") from None
    return host, port, parts.path


def _unix_path(path: str) -> str:
    if not path.startswith("/") or path.endswith("/"):
        raise ValueError("a Unix socket needs the absolute path of a file, as in unix:///run/starlingmq.sock")
    if len(path.encode()) > UNIX_PATH_MAX:
        raise ValueError(f"the path of a Unix socket may have at most {UNIX_PATH_MAX} bytes")
    return path


def _check_tls(scheme: str, tls: TlsConfig | None) -> None:
    encrypted = scheme in ENCRYPTED
    if encrypted and tls is None:
        raise ValueError("needs a tls section with at least cert")
    if not encrypted and tls is not None:
        raise ValueError(f"{scheme}:// is not encrypted; remove its tls section or change the scheme")
