"""Operator actions with typed requests and replies: what they are on the wire."""

from __future__ import annotations

import asyncio
import re
from typing import Annotated, Any, Literal

import pytest
from msgspec import UNSET, Meta, Struct, UnsetType

from starlingmq.admin.node_rpc import nothing_to_report
from starlingmq.admin.operator_problem import AdminError
from starlingmq.admin.typed_actions import FIRST, PAGE, After, Limit, ask, reader_of, texts, typed
from starlingmq.net.control_socket import Report


class Question(Struct, frozen=True):
    name: str = "nobody"
    force: bool = False
    rate: int = 7
    cursor: After = FIRST
    limit: Limit = PAGE


class Limited(Struct, frozen=True):
    name: Annotated[str, Meta(min_length=1)]
    kind: Literal["old", "new"] = "new"
    qos: Annotated[int, Meta(ge=0, le=2)] = 0
    before: Annotated[int, Meta(ge=5)] | None = None
    online: Annotated[bool | None, Meta(description="Or both.")] = None


class Told(Struct, frozen=True):
    asked: Question
    more: int | UnsetType = UNSET


async def tell(report: Report, question: Question) -> Told:
    return Told(question)


ACTION = typed(Question, tell)


async def reply_to(arguments: dict[str, str]) -> dict[str, Any]:
    return await ACTION(nothing_to_report, arguments)


def asked(**arguments: str) -> Any:
    return asyncio.run(reply_to(arguments))["asked"]


def test_texts_become_what_the_request_says_and_others_are_ignored() -> None:
    found = asked(name="n", force="yes", rate="12", cursor="34", limit="56", by="an operator")
    assert found == {"name": "n", "force": True, "rate": 12, "cursor": 34, "limit": 56}


def test_a_text_that_is_not_sent_is_the_default() -> None:
    assert asked() == {"name": "nobody", "force": False, "rate": 7, "cursor": 0, "limit": 100}
    assert asked(cursor="", force="")["cursor"] == 0


@pytest.mark.parametrize("force", ["", "no", "true", "YES", "1"])
def test_nothing_but_yes_is_yes(force: str) -> None:
    assert asked(force=force)["force"] is False


@pytest.mark.parametrize(
    ("name", "text"),
    [
        *(("rate", text) for text in ("", "-1", "1.5", "\u0663", "x", "9" * 19)),
        *(("limit", text) for text in ("", "0", "99999", "x")),
        ("cursor", "x"),
    ],
)
def test_a_text_that_cannot_be_read_is_refused_and_named(name: str, text: str) -> None:
    with pytest.raises(AdminError, match=f"^{name}: ") as refused:
        asked(**{name: text})
    assert refused.value.status == 400


def test_a_request_arrives_as_it_was_sent() -> None:
    question = Question("n", True, 3, After(4), Limit(5))
    assert asyncio.run(ask(ACTION, nothing_to_report, question, Told)) == Told(question)
    assert texts(question) == {"name": "n", "force": "yes", "rate": "3", "cursor": "4", "limit": "5"}


def test_the_limits_of_a_field_hold_for_its_text() -> None:
    read = reader_of(Limited)
    assert read({"name": "n", "kind": "", "before": "", "online": ""}) == Limited("n")
    assert read({"name": "n", "kind": "old", "qos": "2", "before": "5", "online": "no"}) == Limited(
        "n", "old", 2, 5, False
    )


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("name", "", "expected `str` of length >= 1"),
        ("kind", "middle", "must be one of old, new"),
        ("qos", "3", "expected `int` <= 2"),
        ("before", "4", "expected `int` >= 5"),
    ],
)
def test_a_text_beyond_the_limits_is_refused_and_named(name: str, text: str, why: str) -> None:
    with pytest.raises(AdminError, match="^" + re.escape(f"{name}: {why}")) as refused:
        reader_of(Limited)({"name": "n", name: text})
    assert refused.value.status == 400
    with pytest.raises(AdminError, match=r"^name: is missing$"):
        reader_of(Limited)({})


def test_an_unset_field_is_not_in_the_reply() -> None:
    assert "more" not in asyncio.run(reply_to({}))
