"""``ctl user`` and ``ctl rule`` at a broker alone, which keeps what they made when it is killed."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from starlingmq.wire.mqtt import Connack, Connect
from starlingmq.wire.reasons import Reason
from tests.peer import Peer

from .clusters import running
from .commands import run

pytestmark = pytest.mark.slow


def login(url: str, name: str, password: bytes) -> int:
    async def answer() -> int:
        peer = await Peer.open(url)
        peer.send(Connect(5, "c", username=name, password=password))
        reason = (await peer.expect(Connack)).reason
        await peer.close()
        return reason

    return asyncio.run(answer())


def test_what_was_made_survives_a_kill(tmp_path: Path) -> None:
    """Long because one broker serves for all of it."""
    data = ("--data-dir", str(tmp_path / "data"))
    serve = ("serve", *data, "--set", 'listeners=["mqtt://127.0.0.1:0"]', "--set", "auth.methods=[password]")
    (tmp_path / "secret").write_text("right\n")
    with running(tmp_path / "log", *serve) as broker:
        for name, file in ("ann", str(tmp_path / "secret")), ("bob", "-"):
            told = run("ctl", "user", "add", name, "--password-file", file, *data, stdin=b"right\n")
            assert told == (0, f"created the user {name}\n".encode(), "")
        code, _, errors = run("ctl", "user", "add", "ann", "--password-file", str(tmp_path / "secret"), *data)
        assert code != 0 and "exists" in errors
        code, _, errors = run("ctl", "user", "add", "eve", *data)
        assert code != 0 and "no terminal" in errors, "a password is never an argument"
        code, _, errors = run("ctl", "user", "change", "ann", "--password-file", "-", *data, stdin=b"\n")
        assert code != 0 and "empty" in errors
        assert run("ctl", "rule", "set", "quiet", "{deny: publish, topics: [a/#]}", *data)[0] == 0
        code, _, errors = run("ctl", "rule", "set", "odd", "{deny: publish, topcs: [a/#]}", *data)
        assert code != 0 and "topcs" in errors
        assert login(broker.urls[0], "ann", b"right") == 0
        broker.process.kill()
        broker.process.wait()
    with running(tmp_path / "log2", *serve) as broker:
        assert login(broker.urls[0], "ann", b"right") == 0
        _, output, _ = run("ctl", "users", *data)
        assert b"ann" in output and b"operator" in output and b"argon2" not in output
        _, output, _ = run("ctl", "rules", *data)
        assert b"quiet" in output and b"a/#" in output
        assert run("ctl", "user", "delete", "ann", *data)[0] == 0
        assert login(broker.urls[0], "ann", b"right") == Reason.BAD_USER_NAME_OR_PASSWORD
        assert run("ctl", "rule", "delete", "quiet", *data)[0] == 0
    logs = "".join((tmp_path / name).read_text() for name in ("log", "log2"))
    assert "deleted the user 'ann'" in logs and "right" not in logs and "argon2" not in logs
