"""Payloads that a hostile client sends cost a bounded time and memory, and secrets of a target are not shown."""

from __future__ import annotations

import json
import re
from time import process_time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from starlingmq.config.rules_section import RuleConfig
from starlingmq.config.tree_builder import build
from starlingmq.rules.sql_values import LikePattern, RowFailed, like_parts
from tests.patience import slowness
from tests.rules.twins import program_of

SECONDS = 2.0


def failure(sql: str, schema: str, **payload: object) -> str:
    """Why a message has no result, which must be known soon."""
    began = process_time()
    with pytest.raises(RowFailed) as caught:
        program_of(sql, schema).rows(b"t", json.dumps(payload).encode(), 1, False, b"", 0)
    assert process_time() - began < SECONDS * slowness()
    return str(caught.value)


def test_arrays_that_multiply_are_given_up_early() -> None:
    sql = "select a from rows lateral view explode(xs) t as a lateral view explode(xs) u as b where a + b < 0"
    assert "more than 100,000 rows" in failure(sql, "xs array<int>", xs=[1] * 100_000)


def test_a_text_that_would_multiply_is_not_made() -> None:
    told = failure("select replace(s, 'a', t) as r from rows", "s string, t string", s="a" * 100_000, t="b" * 100_000)
    assert "more than 67,108,864 characters" in told


@pytest.mark.parametrize(
    "payload", [b"[" * 500_000, b'{"s":' * 100_000, b'{"s": "' + b"\xff" * 100 + b'"}', b"1" * 10**6]
)
def test_deep_and_broken_payloads_have_no_result(payload: bytes) -> None:
    program = program_of("select s, get_json_object(s, '$.a') as a from rows", "s string")
    with pytest.raises(RowFailed, match=r"decode\.schema"):
        program.rows(b"t", payload, 1, False, b"", 0)
    inner = json.dumps({"s": payload.decode(errors="replace")}).encode()
    assert program.rows(b"t", inner, 1, False, b"", 0)[0][1] is None


def test_a_like_pattern_costs_no_more_on_a_long_text() -> None:
    began = process_time()
    assert not LikePattern("%a%a%a%a%a%a%a%b").matches("a" * 1_000_000)
    assert LikePattern("%a_%a__%c").matches("a" * 1_000_000 + "c")
    assert process_time() - began < SECONDS * slowness()


@given(st.text("ab_%\\\n", max_size=8), st.text("ab_%\\\n", max_size=10))
def test_a_like_pattern_matches_as_its_regular_expression(pattern: str, text: str) -> None:
    try:
        parts = like_parts(pattern)
    except ValueError:
        with pytest.raises(ValueError, match="LIKE"):
            LikePattern(pattern)
        return
    expected = re.compile(".*".join(parts), re.DOTALL).fullmatch(text) is not None
    assert LikePattern(pattern).matches(text) == expected


def test_the_secrets_of_an_address_are_not_shown() -> None:
    sink = {"format": "http", "url": "https://hooks.example.org/x?token=canary"}
    rule = build(RuleConfig, {"name": "r", "source": {"topics": ["a"]}, "sink": sink})
    assert "canary" not in repr(rule)
