"""The settings of ``listeners``, and the checks of their URLs."""

from __future__ import annotations

from typing import Annotated, Final, Literal
from urllib.parse import urlsplit

from msgspec import Meta

from starlingmq.config.api_section import API_SCHEMES
from starlingmq.config.cluster_section import check_dialled
from starlingmq.config.networks import parse_networks
from starlingmq.config.secret_masking import SECRET_URL, without_login
from starlingmq.config.section_types import ConfigError, Count, Section
from starlingmq.config.tls_section import TlsConfig, check_tls

NATS_SCHEMES: Final = ("nats", "tls", "nats+ws", "nats+wss")
HTTP_SCHEMES: Final = ("ws", "wss", "nats+ws", "nats+wss", *API_SCHEMES)  # connections that begin with HTTP
SCHEMES: Final = ("mqtt", "mqtts", "ws", "wss", "unix", *NATS_SCHEMES, *API_SCHEMES)
DEFAULT_LISTENER: Final = "mqtt://127.0.0.1:1883"


class ListenerConfig(Section, frozen=True):
    url: Annotated[
        str,
        Meta(
            description="URL to listen on: mqtt://host:port, mqtts://host:port, ws://host:port/path, "
            "wss://host:port/path, unix:///path (MQTT), nats://host:port, tls://host:port, "
            "nats+ws://host:port, nats+wss://host:port (NATS), http://host:port or "
            "https://host:port (API and dashboard). Port 0 selects a free port.",
            extra=SECRET_URL,
        ),
    ]
    tls: Annotated[
        TlsConfig | None, Meta(description="Certificates of an mqtts, wss, tls, nats+wss or https listener.")
    ] = None
    max_connections: Annotated[
        Count,
        Meta(
            description="Maximum number of connections on this listener; 0 means that only "
            "limits.max_connections applies."
        ),
    ] = 0
    origins: Annotated[
        tuple[str, ...],
        Meta(
            description="Origins of web pages that may open a WebSocket on this listener, such as "
            "https://app.example.org. Empty: all; on a loopback listener without login, pages of this machine "
            "(localhost, loopback addresses, auth.api.hosts) only. Clients that send no Origin header (not browsers) "
            "are always accepted."
        ),
    ] = ()
    paths: Annotated[
        tuple[str, ...],
        Meta(
            description="Further paths of a WebSocket listener, beside that of its URL, such as /. A path, also that "
            "of the URL, may end with *, which stands for any rest: ws://host:9001/* accepts all paths."
        ),
    ] = ()
    subprotocol: Annotated[
        Literal["required", "optional"],
        Meta(
            description="Whether a WebSocket for MQTT has to offer the subprotocol mqtt, or mqttv3.1 as older pages. "
            "optional: pages that offer none, or another one, are accepted too."
        ),
    ] = "required"
    proxy_protocol: Annotated[
        tuple[str, ...],
        Meta(
            description="Networks of load balancers that start each connection with a PROXY protocol header "
            "(v1 or v2), such as 10.0.0.0/8. If set, connections without the header or from "
            "other addresses are refused. Not available for http and unix listeners."
        ),
    ] = ()
    trusted_proxies: Annotated[
        tuple[str, ...],
        Meta(
            description="Networks of proxies whose X-Forwarded-For or Forwarded header names the client, for HTTP and "
            "WebSocket listeners, such as 10.0.0.0/8. Empty: these headers are ignored."
        ),
    ] = ()
    reuse_port: Annotated[
        bool,
        Meta(
            description="Whether other processes of the same user may listen on the same port "
            "(SO_REUSEPORT); the kernel distributes connections among them."
        ),
    ] = False
    advertise: Annotated[
        str,
        Meta(
            description="Address (host:port) given to clients of other nodes that are redirected to this "
            "node. Empty: the listening address; if that is a wildcard address, the host of "
            "cluster.advertise."
        ),
    ] = ""


def listener_sections(listeners: object) -> object:
    """A bare URL stands for a section with only a url, and a single listener for a list of one."""
    if not isinstance(listeners, list):
        listeners = [listeners]
    return [{"url": entry} if isinstance(entry, str) else entry for entry in listeners]


def check_listeners(listeners: tuple[ListenerConfig, ...]) -> None:
    """Raises ConfigError."""
    for index, listener in enumerate(listeners):
        scheme, separator, rest = listener.url.partition("://")
        shown = without_login(listener.url)
        try:
            urlsplit(listener.url)
        except ValueError as error:
            raise ConfigError(f"listeners[{index}].url: {shown!r} is not a valid URL: {error}") from None
        if scheme not in SCHEMES or not separator or not rest:
            raise ConfigError(
                (
                    f"listeners[{index}].url: {shown!r} is not a listener URL, such as mqtt://127.0.0.1:1883; "
                    "it must start with one of "
                )
                + ", ".join(f"{known}://" for known in SCHEMES)
            )
        if scheme in ("mqtts", "wss", "tls", "nats+wss", "https") and listener.tls is None:
            raise ConfigError(f"listeners[{index}]: {shown} needs a tls section with at least cert")
        if listener.tls is not None:
            check_tls(listener.tls, f"listeners[{index}].tls")
        parse_networks(listener.trusted_proxies, f"listeners[{index}].trusted_proxies")
        parse_networks(listener.proxy_protocol, f"listeners[{index}].proxy_protocol")
        if listener.proxy_protocol and scheme in (*API_SCHEMES, "unix"):
            raise ConfigError(f"listeners[{index}].proxy_protocol: not supported by {scheme} listeners; remove it")
        if listener.trusted_proxies and scheme not in HTTP_SCHEMES:
            raise ConfigError(
                f"listeners[{index}].trusted_proxies: supported by HTTP and WebSocket listeners only; remove it"
            )
        if listener.advertise:
            check_dialled(listener.advertise, f"listeners[{index}].advertise")
