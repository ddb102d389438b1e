"""``starlingmq demo`` as a newcomer runs it: what it says, and that it leaves nothing behind, however it is ended."""

from __future__ import annotations

import contextlib
import importlib.util
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import psutil
import pytest

FEW = ("--devices", "20", "--pace", "0.5")
NEEDS_SPARK = pytest.mark.skipif(importlib.util.find_spec("pyspark") is None, reason="make test installs Spark")
SILENT_SECONDS = 10.0  # for processes to be gone


class Demo:
    """A demo that runs; ``lines`` are those that it has said and that were read."""

    def __init__(self, process: subprocess.Popen[str], directory: Path) -> None:
        assert process.stdout is not None
        self.process = process
        self.directory = directory
        self.lines: list[str] = []
        self._out: IO[str] = process.stdout
        self._children: dict[int, psutil.Process] = {}

    def until(self, words: str) -> str:
        """The line that has these words; those of its processes that are there are noted."""
        for line in self._out:
            self.lines.append(line.rstrip())
            if words in line:
                self.note()
                return line
        pytest.fail(f"never said {words!r}:\n" + "\n".join(self.lines))

    def note(self) -> None:
        with contextlib.suppress(psutil.Error):
            for child in psutil.Process(self.process.pid).children(recursive=True):
                self._children[child.pid] = child

    def end(self) -> int:
        """Wait for its end; the exit code."""
        self.lines += [line.rstrip() for line in self._out]
        return self.process.wait(30)

    def left(self) -> list[psutil.Process]:
        """Processes of it that are still there: those that were seen, and those that name its directory."""
        _, alive = psutil.wait_procs(list(self._children.values()), timeout=SILENT_SECONDS)
        named = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if any(str(self.directory) in word for word in process.cmdline()) and process.pid != self.process.pid:
                    named.append(process)
        return alive + named

    def names(self) -> set[str]:
        return {child.name() for child in self._children.values() if child.is_running()}


@contextlib.contextmanager
def demo(directory: Path, *words: str) -> Iterator[Demo]:
    command = [sys.executable, "-m", "starlingmq", "demo", "--dir", str(directory / "demo"), *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            yield Demo(process, directory / "demo")
        finally:
            if process.poll() is None:
                process.terminate()


def counted(demo: Demo, pattern: str) -> int:
    """The number that a line has."""
    for line in demo.lines:
        found = re.search(pattern, line)
        if found:
            return int(found[1].replace(",", ""))
    pytest.fail(f"no line has {pattern!r}:\n" + "\n".join(demo.lines))


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_short_one_ends_by_itself_and_says_what_became_of_all(tmp_path: Path) -> None:
    with demo(tmp_path, *FEW, "--minutes", "0.1", "--no-spark", "--no-faults") as running:
        assert "http://127.0.0.1:" in running.until("dashboard")
        look = running.until("messages ").split(maxsplit=1)[1].strip()
        running.until("are connected")
        done = subprocess.run(f"{look} -C 1 -W 20", shell=True, capture_output=True, text=True, check=False)
        assert done.stdout.startswith("fleet/north/d0"), done  # the command that it says, as it says it
        running.until("as counted by the clients")
        assert running.end() == 0, "\n".join(running.lines[-60:])
        assert running.left() == []
    assert counted(running, r"([\d,]+) readings acknowledged at QoS 1 and 2, 0 of them lost") > 0
    assert counted(running, r"([\d,]+) devices are retained as online, 0 in a wrong state") == 20
    assert counted(running, r"([\d,]+) duplicates at QoS 2") == 0
    assert counted(running, r"([\d,]+) requests answered by NATS workers") > 0
    assert not any("killed" in line for line in running.lines)


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "words", ["starting three nodes", pytest.param("are connected; each reports", marks=pytest.mark.long)]
)
def test_ctrl_c_ends_everything_at_any_moment(tmp_path: Path, words: str) -> None:
    with demo(tmp_path, *FEW, "--no-spark") as running:
        running.until(words)
        running.process.send_signal(signal.SIGINT)
        running.note()
        assert running.end() == 0, "\n".join(running.lines[-60:])
        assert running.left() == []
    assert any("interrupted" in line for line in running.lines)


@pytest.mark.long(kept="tests/demo/test_demo.py::test_a_short_one_ends_by_itself_and_says_what_became_of_all")
@NEEDS_SPARK
@pytest.mark.timeout(600)
def test_the_whole_show_loses_nothing(tmp_path: Path) -> None:
    with demo(tmp_path, "--devices", "100", "--pace", "3", "--minutes", "1") as running:
        running.until("n2 and its etcd are killed")
        running.until("n2 serves again")
        assert "n1 has noticed, and reaches n3 through n2" in running.until("has noticed")
        running.until("the link is repaired")
        running.until("as counted by the clients")
        assert "java" in running.names()  # its pipelines still run
        running.until("the delivery audit reads")
        assert running.end() == 0, "\n".join(running.lines[-60:])
        assert running.left() == []
    acknowledged = counted(running, r"([\d,]+) readings acknowledged at QoS 1 and 2, 0 of them lost")
    assert counted(running, r"([\d,]+) rows of QoS 1 and 2 in positions.parquet") >= acknowledged
    assert counted(running, r"([\d,]+) alerts were due from Spark: 0 lost, 0 duplicates") > 0
    assert counted(running, r"([\d,]+) clients lost their connection") >= 20
    assert any("nothing lost, nothing doubled" in line for line in running.lines)


@pytest.mark.long(kept="tests/demo/test_demo.py::test_ctrl_c_ends_everything_at_any_moment")
@NEEDS_SPARK
@pytest.mark.timeout(200)
def test_ctrl_c_ends_spark_too(tmp_path: Path) -> None:
    with demo(tmp_path, *FEW) as running:
        running.until("the first alert arrived")
        assert "java" in running.names()
        running.process.send_signal(signal.SIGINT)
        assert running.end() == 0, "\n".join(running.lines[-60:])
        assert running.left() == []


@pytest.mark.slow
def test_a_directory_that_is_not_empty_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo" / "mine").touch()
    with demo(tmp_path) as running:
        assert running.end() == 2
    assert running.lines == [f"error: {tmp_path / 'demo'} is not empty; give another directory"]
