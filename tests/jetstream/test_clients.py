"""Clients that others wrote, each with its own kind of program: nats.js (the packages of today, and the one before
them), the Go client, and the command line client ``nats``.

``told`` has the answers of nats-server to each of them, which ``python -m tests.jetstream.test_clients`` records.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any, Final

import pytest
from bench.fetched_peers import go_program
from tests.bridges.nats_real import HAS_NATS_SERVER, ends
from tests.jetstream.twin import scrubbed

ROOT: Final = Path(__file__).parents[2]
TOLD: Final = Path(__file__).parent / "told"
SECONDS: Final = 50.0
BUILD_SECONDS: Final = 600
NATS: Final = shutil.which("nats") or os.fspath(go_program("nats"))
HOW: Final = "GOBIN=$PWD/build/peers/go go install github.com/nats-io/natscli/nats@v0.5.1"

NODE: Final = (
    pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed"),
    pytest.mark.skipif(
        not (ROOT / "tests/js/node_modules/@nats-io/obj").exists(),
        reason="nats.js is not installed: npm ci in tests/js",
    ),
)
FILES: Final = {"new": "js", "old": "js"}  # both generations of nats.js are told the same
SERVERS: Final = ["broker", pytest.param("nats-server", marks=HAS_NATS_SERVER)]
COMMANDS: Final = (
    "stream add orders --subjects orders.> --defaults",
    "pub --jetstream orders.new one",
    "pub --jetstream orders.new two",
    "pub --jetstream --count 3 orders.old old",
    "stream ls --names",
    "stream info orders --json",
    "stream subjects orders --json",
    "stream get orders 2 --json",
    "consumer add orders pull --pull --defaults",
    "consumer next orders pull --count 3 --raw",
    "consumer edit orders pull --description x -f",
    "consumer info orders pull --json",
    "consumer pause orders pull 1h -f",
    "consumer resume orders pull -f",
    "consumer rm orders pull -f",
    "stream edit orders --max-msgs 100 -f",
    "stream rmm orders 2 -f",
    "stream purge orders --subject orders.new -f",
    "stream get orders 1 --json",
    "stream add overlapping --subjects orders.old --defaults",
    "stream rm orders -f",
    "kv add settings --history 3",
    "kv put settings a 1",
    "kv create settings c 2",
    "kv create settings c 2",
    "kv update settings c 3 2",
    "kv get settings a --raw",
    "kv ls settings",
    "kv del settings a -f",
    "kv get settings a --raw",
    "kv purge settings c -f",
    "kv rm settings -f",
    "object add files",
    "object put files {file} --name file --no-progress",
    "object ls files --names",
    "object get files file -O {file}.back -f --no-progress",
    "object rm files file -f",
    "object del files -f",
    "stream ls --names",
)
SHOWN: Final = ("--json", "--raw", "--names", "kv ls", "kv put", "kv create", "kv update")


async def ran(*command: str, directory: Path = ROOT, home: Path | None = None) -> tuple[int, str, str]:
    environment = {**os.environ, **({"HOME": os.fspath(home)} if home else {})}
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=directory,
        env=environment,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        out, errors = await asyncio.wait_for(process.communicate(), SECONDS)
    except TimeoutError:
        process.kill()
        await process.wait()
        raise
    assert process.returncode is not None
    return process.returncode, out.decode(), errors.decode()


async def program(*command: str) -> list[Any]:
    """Run a program that prints its notes as JSON."""
    code, out, errors = await ran(*command)
    assert code == 0, errors
    notes: list[Any] = json.loads(out)
    return notes


async def commands(url: str) -> list[Any]:
    """Run the command line client; note whether it succeeded, and its output where that has no times."""
    notes = []
    with tempfile.TemporaryDirectory() as home:
        file = Path(home) / "file"
        file.write_text("content\n")
        for line in COMMANDS:
            words = [word.format(file=file) for word in line.split()]
            code, out, _ = await ran(NATS, "--server", url, *words, home=Path(home))
            shown = scrubbed(json.loads(out)) if "--json" in line and code == 0 else out
            notes.append([line, code, shown if any(word in line for word in SHOWN) and code == 0 else ""])
        notes.append(["got back", Path(f"{file}.back").read_text()])
    return notes


async def told(who: str, url: str, go: str = "") -> list[Any]:
    if who == "go":
        return await program(go, url)
    return await (commands(url) if who == "cli" else program("node", "tests/js/jetstream.js", url, who))


async def address(server: str, directory: Path, stack: Any) -> str:
    if server == "nats-server":
        return str((await stack.server(f'jetstream {{ store_dir: "{directory / "jetstream"}" }}')).url)
    broker = await stack.broker(node={"name": "near", "data_dir": str(directory / "data")})
    return str(broker.address("nats"))


async def compare(who: str, server: str, directory: Path, go: str = "") -> None:
    async with ends(directory) as stack:
        found = await told(who, await address(server, directory, stack), go)
    expected = json.loads((TOLD / f"{FILES.get(who, who)}.json").read_text())
    assert [each for each in zip(expected, found, strict=False) if each[0] != each[1]] == []
    assert len(found) == len(expected)


@pytest.mark.slow
@pytest.mark.parametrize(
    "who", [pytest.param("new", marks=NODE), pytest.param("old", marks=NODE)], ids=["@nats-io", "nats"]
)
@pytest.mark.parametrize("server", SERVERS)
async def test_natsjs_is_told_what_nats_server_tells(who: str, server: str, tmp_path: Path) -> None:
    await compare(who, server, tmp_path)


def built(directory: Path) -> str:
    """The program of tests/go/jetstream; skips where Go or its modules are not installed."""
    if shutil.which("go") is None:
        pytest.skip("go is not installed")
    build = ["go", "build", "-o", os.fspath(directory / "program"), "."]
    source = ROOT / "tests/go/jetstream"
    done = subprocess.run(build, cwd=source, capture_output=True, text=True, timeout=BUILD_SECONDS, check=False)
    if done.returncode != 0 and "dial tcp" in done.stderr:
        pytest.skip("its modules are not there: go mod download in tests/go/jetstream")
    assert done.returncode == 0, done.stderr
    return os.fspath(directory / "program")


@pytest.fixture(scope="module")
def go(tmp_path_factory: pytest.TempPathFactory) -> str:
    return built(tmp_path_factory.mktemp("go"))


@pytest.mark.long(kept="tests/jetstream/test_clients.py::test_natsjs_is_told_what_nats_server_tells")
@pytest.mark.timeout(BUILD_SECONDS)
@pytest.mark.parametrize("server", SERVERS)
async def test_the_go_client_is_told_what_nats_server_tells(server: str, go: str, tmp_path: Path) -> None:
    await compare("go", server, tmp_path, go)


@pytest.mark.long(kept="tests/jetstream/test_clients.py::test_natsjs_is_told_what_nats_server_tells")
@pytest.mark.timeout(BUILD_SECONDS)
@pytest.mark.skipif(not Path(NATS).exists(), reason=f"nats is not installed: {HOW}")
@pytest.mark.parametrize("server", SERVERS)
async def test_the_command_line_client_is_told_what_nats_server_tells(server: str, tmp_path: Path) -> None:
    await compare("cli", server, tmp_path)


async def record() -> None:
    for who in ("new", "go", "cli"):
        with tempfile.TemporaryDirectory() as directory:
            go = built(Path(directory)) if who == "go" else ""
            async with ends(Path(directory)) as stack:
                notes = await told(who, await address("nats-server", Path(directory), stack), go)
        lines = ",\n".join(json.dumps(note) for note in notes)
        (TOLD / f"{FILES.get(who, who)}.json").write_text(f"[\n{lines}\n]\n")


if __name__ == "__main__":
    asyncio.run(record())
