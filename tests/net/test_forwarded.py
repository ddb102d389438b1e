"""Clients behind proxies: which address counts, and what a client cannot forge."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from starlingmq.config.networks import parse_networks
from starlingmq.config.section_types import ConfigError
from starlingmq.config.settings import load_config
from starlingmq.net.listeners.forwarded import FORWARDED, HOPS_MAX, X_FORWARDED_FOR, ForwardedError, client_address

TRUSTED = parse_networks(["10.0.0.0/8", "2001:db8:1::/48", "127.0.0.1"], "t")
PROXY = "10.0.0.1"


def by_list(*values: str, peer: str = PROXY) -> str:
    return client_address(peer, [(X_FORWARDED_FOR, value.encode("latin-1")) for value in values], TRUSTED)


def by_elements(*values: str, peer: str = PROXY) -> str:
    return client_address(peer, [(FORWARDED, value.encode("latin-1")) for value in values], TRUSTED)


@pytest.mark.parametrize(
    ("values", "client"),
    [
        (["192.0.2.7"], "192.0.2.7"),
        (["192.0.2.7:4711"], "192.0.2.7"),
        (["198.51.100.1, 192.0.2.7"], "192.0.2.7"),
        (["198.51.100.1", "192.0.2.7"], "192.0.2.7"),
        (["127.0.0.1, 192.0.2.7"], "192.0.2.7"),
        (["192.0.2.7, 10.1.1.1,10.2.2.2"], "192.0.2.7"),
        (["10.1.1.1, 192.0.2.7, 10.2.2.2"], "192.0.2.7"),
        (["10.1.1.1, 10.2.2.2"], "10.1.1.1"),
        (["2001:db8:2::7"], "2001:db8:2::7"),
        (["[2001:db8:2::7]:99, 2001:db8:1::1"], "2001:db8:2::7"),
        (["::ffff:192.0.2.7"], "192.0.2.7"),
        (["192.0.2.7, ::ffff:10.1.1.1"], "192.0.2.7"),
        (["192.0.2.7, unknown"], PROXY),
        (["192.0.2.7, unknown, 10.1.1.1"], "10.1.1.1"),
        (["192.0.2.7,, ,"], "192.0.2.7"),
        ([""], PROXY),
        ([], PROXY),
    ],
)
def test_the_rightmost_untrusted_address_of_x_forwarded_for_is_the_client(values: list[str], client: str) -> None:
    assert by_list(*values) == client


@pytest.mark.parametrize(
    ("values", "client"),
    [
        (["for=192.0.2.7"], "192.0.2.7"),
        (['For="192.0.2.7:4711";proto=https;by=10.0.0.1'], "192.0.2.7"),
        (['for="[2001:db8:2::7]:4711"'], "2001:db8:2::7"),
        (["for=198.51.100.1, for=192.0.2.7;proto=http , for=10.3.3.3"], "192.0.2.7"),
        (["for=198.51.100.1", "for=192.0.2.7"], "192.0.2.7"),
        (['for="198.51.100.1, for=198.51.100.2", for=192.0.2.7'], "192.0.2.7"),
        (['for="19\\2.0.2.7"'], "192.0.2.7"),
        (["for=192.0.2.7, for=_hidden"], PROXY),
        (["for=192.0.2.7, by=10.0.0.1"], PROXY),
        (["for=192.0.2.7, ,;"], "192.0.2.7"),
        ([""], PROXY),
    ],
)
def test_the_rightmost_untrusted_address_of_forwarded_is_the_client(values: list[str], client: str) -> None:
    assert by_elements(*values) == client


def test_the_headers_of_an_untrusted_peer_are_ignored() -> None:
    assert by_list("198.51.100.1", peer="192.0.2.7") == "192.0.2.7"
    assert by_elements("no = header", peer="192.0.2.7") == "192.0.2.7"
    assert by_list("198.51.100.1", peer="fe80::1%eth0") == "fe80::1%eth0"
    assert client_address(PROXY, [(X_FORWARDED_FOR, b"198.51.100.1")], ()) == PROXY


FORGED = ['for="198.51.100.1', "for=198.51.100.1;for=198.51.100.2", "for = 198.51.100.1", "for", 'for="a"b', "for=ü"]


@pytest.mark.parametrize("forged", FORGED)
def test_a_malformed_forwarded_is_refused_and_not_counted_for_the_proxy(forged: str) -> None:
    with pytest.raises(ForwardedError):
        by_elements(f"{forged}, for=192.0.2.7")


def test_headers_that_name_different_clients_are_refused() -> None:
    both = [(X_FORWARDED_FOR, b"198.51.100.1"), (FORWARDED, b"for=192.0.2.7")]
    with pytest.raises(ForwardedError, match="different clients"):
        client_address(PROXY, both, TRUSTED)
    both = [(X_FORWARDED_FOR, b"1.1.1.1, 192.0.2.7"), (FORWARDED, b"for=192.0.2.7")]
    assert client_address(PROXY, both, TRUSTED) == "192.0.2.7"


@given(st.text(st.characters(max_codepoint=255, exclude_characters="\r\n")), st.booleans())
def test_no_text_of_the_client_replaces_what_the_proxy_appends(text: str, quoted: bool) -> None:
    assert by_list(f"{text}, 192.0.2.7") == "192.0.2.7"
    own = 'for="192.0.2.7:1"' if quoted else "for=192.0.2.7"
    with suppress(ForwardedError):
        assert by_elements(f"{text}, {own}") == "192.0.2.7"


def test_no_more_than_the_last_hops_are_looked_at() -> None:
    assert by_list("192.0.2.7, 10.1.1.1" + ", 10.2.2.2" * HOPS_MAX) == "10.2.2.2"
    assert by_list("192.0.2.7, 10.1.1.1" + ", 10.2.2.2" * (HOPS_MAX - 2)) == "192.0.2.7"


@pytest.mark.parametrize("text", ["10.0.0.1/8", "host", "", "10.0.0.0/33", "1.2.3.4.5", "[::1]"])
def test_an_invalid_network_is_reported_in_one_line(text: str) -> None:
    with pytest.raises(ConfigError, match=r"listeners\[0\].trusted_proxies\[1\]: ") as raised:
        load_config(None, [f"listeners=[{{url: 'http://127.0.0.1:0', trusted_proxies: ['::1', '{text}']}}]"])
    assert "\n" not in str(raised.value)


def test_only_listeners_for_http_and_websockets_have_trusted_proxies() -> None:
    load_config(None, ["listeners=[{url: 'ws://127.0.0.1:0', trusted_proxies: ['10.0.0.0/8']}]"])
    with pytest.raises(ConfigError, match=r"listeners\[0\].trusted_proxies: .*HTTP and WebSocket"):
        load_config(None, ["listeners=[{url: 'mqtt://127.0.0.1:0', trusted_proxies: ['10.0.0.0/8']}]"])
