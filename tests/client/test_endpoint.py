"""Where a client goes: its URL, and what servers say of other servers."""

from __future__ import annotations

import pytest

from starlingmq.client.endpoint import parse_url, referred


@pytest.mark.parametrize(
    ("home", "reference", "expected"),
    [
        ("mqtt://a:1000", "b:2000", "mqtt://b:2000"),
        ("mqtt://a:1000", "b", "mqtt://b:1883"),
        ("mqtts://a", "b:2000 c:3000", "mqtts://b:2000"),
        ("wss://a/path", "[::1]:2000", "wss://[::1]:2000/path"),
    ],
)
def test_a_server_reference_names_a_server_that_is_reached_by_the_same_means(
    home: str, reference: str, expected: str
) -> None:
    assert str(referred(parse_url(home), reference)) == expected


@pytest.mark.parametrize("reference", ["", " ", "b:port", "b:99999", "/only/a/path", ":1883"])
def test_an_invalid_server_reference_is_not_followed(reference: str) -> None:
    assert referred(parse_url("mqtt://a:1000"), reference) is None


def test_a_socket_has_no_other_servers() -> None:
    assert referred(parse_url("unix:///run/a.sock"), "b:1") is None
