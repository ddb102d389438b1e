"""``ctl`` commands end if the broker does not answer, unless they wait for something by design."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from starlingmq.cli import control, ctl_ask, remote
from starlingmq.cli.main import main
from starlingmq.net.control_path import NAME

LIMIT = 0.3  # seconds


@contextmanager
def listening(family: socket.AddressFamily, address: str | tuple[str, int]) -> Iterator[socket.socket]:
    """The listener of a broker that is stopped: the system completes connections, and nothing answers."""
    with socket.socket(family, socket.SOCK_STREAM) as sock:
        sock.bind(address)
        sock.listen(1)
        yield sock


@pytest.fixture
def silent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The data directory of a broker that does not answer."""
    for module in (control, ctl_ask, remote):
        monkeypatch.setattr(module, "ANSWER_SECONDS", LIMIT)
    monkeypatch.setattr(control.ask_broker, "__defaults__", (LIMIT,))
    with listening(socket.AF_UNIX, str(tmp_path / NAME)):
        yield tmp_path


@pytest.mark.parametrize("words", ["health --timeout 0.3", "status", "storage stats", "cluster status", "stream list"])
def test_a_command_ends_with_one_line_if_the_broker_does_not_answer(
    silent: Path, capsys: pytest.CaptureFixture[str], words: str
) -> None:
    began = time.monotonic()
    assert main(["ctl", *words.split(), "--data-dir", str(silent)]) == 2
    assert LIMIT <= time.monotonic() - began < 20 * LIMIT
    error = f"error: the broker at {silent} has not answered for 0.3 s; see whether its process runs\n"
    assert capsys.readouterr().err == error


def test_so_does_a_command_over_http(capsys: pytest.CaptureFixture[str]) -> None:
    with listening(socket.AF_INET, ("127.0.0.1", 0)) as sock:
        url = f"http://127.0.0.1:{sock.getsockname()[1]}"
        assert main(["ctl", "health", "--timeout", "0.3", "--url", url]) == 2
    error = f"error: the broker at {url} has not answered for 0.3 s; see whether its process runs\n"
    assert capsys.readouterr().err == error


def test_many_waiting_requests_are_an_error_too(silent: Path, capsys: pytest.CaptureFixture[str]) -> None:
    waiting = []
    with pytest.raises(BlockingIOError):
        for _ in range(10):
            waiting.append(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            waiting[-1].setblocking(False)
            waiting[-1].connect(str(silent / NAME))
    assert main(["ctl", "health", "--data-dir", str(silent)]) == 2
    assert f"the broker at {silent} does not answer, and many requests wait" in capsys.readouterr().err
    for each in waiting:
        each.close()


@pytest.mark.parametrize("action", ["cluster.drain", "cluster.leave", "cluster.rebalance", "storage.check", "backup"])
def test_an_action_that_waits_is_not_cut(tmp_path: Path, action: str) -> None:
    def serve(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection, connection.makefile("rwb") as lines:
            asked = json.loads(lines.readline())
            time.sleep(2 * LIMIT)
            lines.write(json.dumps({"result": {"asked": asked["action"]}}).encode() + b"\n")

    with listening(socket.AF_UNIX, str(tmp_path / NAME)) as listener:
        thread = threading.Thread(target=serve, args=(listener,))
        thread.start()
        try:
            found = control.ask_broker(tmp_path, action, {}, lambda what, done, total, unit: None, LIMIT)
        finally:
            thread.join()
    assert found == {"asked": action}
