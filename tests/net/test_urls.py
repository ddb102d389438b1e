from __future__ import annotations

import pytest

from starlingmq.config.secret_masking import without_login
from starlingmq.config.settings import ListenerConfig
from starlingmq.config.tls_section import TlsConfig
from starlingmq.net.listeners.urls import ListenerError, ListenerSpec, parse_listener

TLS = TlsConfig(cert="server.pem")

GOOD = [
    ("mqtt://127.0.0.1:1883", ("mqtt", "127.0.0.1", 1883, "")),
    ("mqtt://127.0.0.1", ("mqtt", "127.0.0.1", 1883, "")),
    ("mqtt://127.0.0.1/", ("mqtt", "127.0.0.1", 1883, "")),
    ("mqtt://localhost:0", ("mqtt", "localhost", 0, "")),
    ("mqtt://Broker.Example:1", ("mqtt", "broker.example", 1, "")),
    ("mqtt://:1883", ("mqtt", "", 1883, "")),
    ("mqtt://[::1]:65535", ("mqtt", "::1", 65535, "")),
    ("mqtt://[::]", ("mqtt", "::", 1883, "")),
    ("mqtt://[fe80::1%eth0]:1883", ("mqtt", "fe80::1%eth0", 1883, "")),
    ("mqtts://0.0.0.0", ("mqtts", "0.0.0.0", 8883, "")),
    ("mqtts://0.0.0.0:8884", ("mqtts", "0.0.0.0", 8884, "")),
    ("ws://127.0.0.1:8083/mqtt", ("ws", "127.0.0.1", 8083, "/mqtt")),
    ("ws://127.0.0.1:8083", ("ws", "127.0.0.1", 8083, "/mqtt")),
    ("ws://127.0.0.1:8083/", ("ws", "127.0.0.1", 8083, "/")),
    ("ws://127.0.0.1/a/b", ("ws", "127.0.0.1", 80, "/a/b")),
    ("wss://[::1]/mqtt", ("wss", "::1", 443, "/mqtt")),
    ("nats://127.0.0.1", ("nats", "127.0.0.1", 4222, "")),
    ("tls://[::1]:0", ("tls", "::1", 0, "")),
    ("nats+ws://:8080", ("nats+ws", "", 8080, "/")),
    ("nats+wss://127.0.0.1/nats", ("nats+wss", "127.0.0.1", 443, "/nats")),
    ("unix:///run/starlingmq.sock", ("unix", "", 0, "/run/starlingmq.sock")),
    ("unix:///run/a?b#c@d", ("unix", "", 0, "/run/a?b#c@d")),
]

BAD = [
    ("127.0.0.1:1883", "must start with one of"),
    ("localhost:1883", "must start with one of"),
    ("mqtt:127.0.0.1", "must start with one of"),
    ("MQTT://127.0.0.1", "must start with one of"),
    ("tcp://127.0.0.1:1883", "must start with one of"),
    ("", "must start with one of"),
    ("mqtt://127.0.0.1:65536", "0 to 65535"),
    ("mqtt://127.0.0.1:-1", "0 to 65535"),
    ("mqtt://127.0.0.1:port", "0 to 65535"),
    ("mqtt://::1:1883", "brackets"),
    ("mqtt://[::1:1883", "IPv6"),
    ("mqtt://[12345::]:1883", "12345::"),
    ("mqtt://1883", "mqtt://:1883"),
    ("mqtt://me:secret@127.0.0.1", "not contain a user name"),
    ("mqtt://127.0.0.1:1883/mqtt", "only ws:// and wss://"),
    ("mqtt://127.0.0.1?a=b", "?query"),
    ("ws://127.0.0.1/mqtt#a", "#fragment"),
    ("nats://127.0.0.1/x", "only ws:// and wss://"),
    ("mqtt://127.0.0.1 :1883", "blanks"),
    ("mqtt://127.0.0.1\n:1883", "control characters"),
    ("unix://relative.sock", "absolute path"),
    ("unix:///", "absolute path"),
    ("unix:///" + "x" * 107, "at most 107 bytes"),
]


@pytest.mark.parametrize(("url", "parts"), GOOD, ids=[url for url, _ in GOOD])
def test_a_listener_is_taken_apart(url: str, parts: tuple[str, str, int, str]) -> None:
    tls = TLS if url.startswith(("mqtts", "wss", "tls", "nats+wss")) else None
    spec = parse_listener(ListenerConfig(url=url, tls=tls, max_connections=7))
    assert spec == ListenerSpec(*parts, tls=tls, max_connections=7)


@pytest.mark.parametrize(("url", "parts"), GOOD, ids=[url for url, _ in GOOD])
def test_its_text_means_the_same_again(url: str, parts: tuple[str, str, int, str]) -> None:
    tls = TLS if url.startswith(("mqtts", "wss", "tls", "nats+wss")) else None
    spec = parse_listener(ListenerConfig(url=url, tls=tls))
    assert parse_listener(ListenerConfig(url=str(spec), tls=tls)) == spec


@pytest.mark.parametrize(("url", "complaint"), BAD, ids=[repr(url)[:40] for url, _ in BAD])
def test_an_invalid_listener_url_is_reported_in_one_line(url: str, complaint: str) -> None:
    with pytest.raises(ListenerError) as caught:
        parse_listener(ListenerConfig(url=url))
    message = str(caught.value)
    shown, _, said = message.partition(": ")
    assert shown in (without_login(url), repr(without_login(url)))
    assert "secret" not in message and "me:" not in message
    assert complaint in said
    assert message.isprintable()


def test_tls_belongs_to_encrypted_listeners_only() -> None:
    with pytest.raises(ListenerError, match="needs a tls section"):
        parse_listener(ListenerConfig(url="wss://127.0.0.1"))
    with pytest.raises(ListenerError, match="remove its tls section"):
        parse_listener(ListenerConfig(url="mqtt://127.0.0.1", tls=TLS))
