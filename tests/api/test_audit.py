"""The line of the log that names the operator of a change."""

import logging
from pathlib import Path
from typing import Any

import pytest

from starlingmq.admin.declared_actions import DECLARATIONS, DECLARED
from starlingmq.admin.messages import MessageActions, OneTopic, SessionMessageAnswer, SessionMessageRequest, first_found
from starlingmq.admin.node_rpc import Answers, Missing, NodeRpc
from starlingmq.admin.operator_problem import AdminError
from starlingmq.core.messages.message import Message
from tests.api.conftest import Ask, Serve


async def test_changes_of_streams_name_their_operator(
    serve: Serve, ask: Ask, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    broker = await serve(node={"data_dir": str(tmp_path / "data")})
    caplog.set_level(logging.INFO, "starlingmq.admin")
    for method, path, given in (
        ("POST", "/streams", {"json": {"name": "s", "topics": ["a/#"]}}),
        ("POST", "/streams/trim", {"params": {"name": "s"}}),
        ("DELETE", "/streams", {"params": {"name": "s"}}),
    ):
        answer = await ask(broker, method, f"/api/v1{path}", **given)
        assert answer.status_code in (200, 201), answer.text
    told = [record.getMessage() for record in caplog.records if record.name == "starlingmq.admin"]
    assert len(told) == 3 and all(line.startswith("an operator on ") and "stream 's'" in line for line in told), told


def test_leaving_is_a_warning() -> None:
    noted = {one.name: one for one in DECLARATIONS}
    assert noted[DECLARED["leave.begin"].noted_by].level == logging.WARNING


def test_a_message_that_a_missing_node_may_have_is_not_gone() -> None:
    rpc, asked = NodeRpc("one", {}, None), SessionMessageRequest("c")
    away: Answers[Any] = Answers({"one": SessionMessageAnswer(None)}, [Missing("two", "it is not connected")])
    with pytest.raises(AdminError, match="do not: two") as error:
        first_found(rpc, away, asked)
    assert error.value.status == 503


async def test_a_retained_message_without_its_payload_is_not_shown_as_empty(serve: Serve, ask: Ask) -> None:
    broker = await serve()
    large = Message(b"large", b"", 0, True, b"", 0.0, "", 0.0)
    large.loaded = False
    assert broker._admin is not None
    actions = MessageActions(broker._admin.local_node.driver)
    actions.state.retained.put(large)
    (listed,) = (await ask(broker, "GET", "/api/v1/retained")).json()["retained"]
    (found,) = (await ask(broker, "GET", "/api/v1/retained/search?sort=size")).json()["retained"]
    assert listed["topic"] == "large" and listed["size"] is found["size"] is None
    with pytest.raises(AdminError, match="at other nodes"):
        await actions.retained_message(OneTopic("large"))
