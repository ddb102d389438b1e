"""Compiling a checkout: nothing runs with a part of the compiled modules, and a build that was killed is continued."""

from __future__ import annotations

import ast
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from setuptools import Distribution, Extension

from compiling.build_side_by_side import BuildSideBySide
from compiling.checkout import SUFFIX, Checkout
from compiling.modules import PACKAGE, ROOT, hot_modules

NEW: Final = "compiled"
OLD: Final = "of an older build"
LEFT_OUT: Final = shutil.ignore_patterns("*.so", "__pycache__", "*.egg-info")
NOT_PURE: Final = {name: value for name, value in os.environ.items() if name not in ("STARLINGMQ_PURE", "PYTHONPATH")}

SLOW_SETUP: Final = f"""
import os, sys, time
sys.path.insert(0, os.getcwd())
from pathlib import Path
from compiling.modules import LIBRARY, hot_modules
Path("started").write_text(str(os.getpid()))
while not Path("go").exists():
    time.sleep(0.01)
built = Path(sys.argv[sys.argv.index("--build-lib") + 1])
for path in hot_modules():
    target = (built / Path(path).relative_to("src")).with_suffix({SUFFIX!r})
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text({NEW!r})
(built / (LIBRARY + {SUFFIX!r})).write_text({NEW!r})
"""
"""A setup.py that compiles nothing, and only when it is told to."""


class Killed(BaseException):
    """Ends a build in the middle."""


@pytest.fixture
def copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout whose setup.py waits for the file ``go``."""
    for name in ("src", "compiling"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=LEFT_OUT)
    shutil.copy(ROOT / "pyproject.toml", tmp_path / "pyproject.toml")
    (tmp_path / "setup.py").write_text(SLOW_SETUP)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


def extensions_of(root: Path) -> dict[str, str]:
    """The extension modules beside the sources, and what is in them."""
    return {str(path.relative_to(root)): path.read_text() for path in (root / PACKAGE).rglob("*.so")}


def expected(root: Path) -> dict[str, str]:
    return {str(Path(path).with_suffix(SUFFIX)): NEW for path in hot_modules(root)}


@pytest.mark.parametrize("at", [0, 1, 50, -1])
def test_a_build_killed_while_it_moves_in_leaves_the_checkout_interpreted(
    copy: Path, at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    (copy / "go").touch()
    checkout = Checkout(copy)
    checkout.library.write_text(OLD)
    stale = copy / PACKAGE / "core" / f"gone{SUFFIX}"
    stale.write_text(OLD)
    calls, last = 0, len(hot_modules(copy))

    def replace(source: Path, target: Path) -> None:
        nonlocal calls
        if calls == (at if at >= 0 else last):
            raise Killed
        calls += 1
        os.rename(source, target)

    with monkeypatch.context() as patch:
        patch.setattr("compiling.checkout.os.replace", replace)
        with pytest.raises(Killed):
            checkout.compile()
    assert not checkout.library.exists()
    assert not checkout.up_to_date()
    assert checkout.compile()
    assert checkout.up_to_date() and checkout.library.read_text() == NEW
    assert extensions_of(copy) == expected(copy)


def test_a_process_without_the_library_runs_interpreted(copy: Path) -> None:
    """The extension modules here are no machine code: to load one of them is an error."""
    for path in hot_modules(copy):
        (copy / path).with_suffix(SUFFIX).write_text("a part of a build")
    code = "import starlingmq, starlingmq.node.assembly; print(starlingmq.compiled())"
    environment = {**NOT_PURE, "PYTHONPATH": str(copy / "src")}
    said = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert said.stdout == "False\n"


def test_sources_that_change_while_they_compile_are_compiled_again(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (copy / "go").touch()
    checkout = Checkout(copy)
    build, changed = checkout.build, copy / hot_modules(copy)[0]

    def build_and_edit() -> bool:
        done = build()
        changed.write_text(changed.read_text() + "\n")
        return done

    monkeypatch.setattr(checkout, "build", build_and_edit)
    assert not checkout.compile()
    assert not checkout.library.exists()


@pytest.mark.parametrize(
    ("edited", "due"),
    [("core/broker.py", True), ("config/settings.py", True), ("cli/main.py", False), ("../../pyproject.toml", False)],
    ids=["a compiled module", "a module that compiled modules import", "another module", "options of other tools"],
)
def test_compiling_is_due_when_what_it_reads_has_changed(copy: Path, edited: str, due: bool) -> None:
    (copy / "go").touch()
    checkout = Checkout(copy)
    assert checkout.compile()
    path = copy / PACKAGE / edited
    path.write_text(path.read_text() + "\n")
    assert checkout.up_to_date() != due


def test_another_clone_with_the_same_sources_compiles_nothing(
    copy: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    (copy / "go").touch()
    assert Checkout(copy).compile()
    clone = tmp_path_factory.mktemp("clone")
    shutil.copytree(copy, clone, ignore=LEFT_OUT, dirs_exist_ok=True)
    shutil.rmtree(clone / "build")
    (clone / "started").unlink()
    assert Checkout(clone).compile()
    assert not (clone / "started").exists(), "setup.py was called"
    assert extensions_of(clone) == expected(clone)
    changed = clone / hot_modules(clone)[0]
    changed.write_text(changed.read_text() + "\n")
    assert Checkout(clone).compile() and (clone / "started").exists()


def test_a_user_without_a_cache_compiles_in_the_checkout(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (copy / "go").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(copy / "go"))  # a file
    checkout = Checkout(copy)
    assert not checkout.up_to_date() and not (copy / "build").exists(), "a look writes nothing"
    assert checkout.compile() and extensions_of(copy) == expected(copy)


@pytest.fixture
def command(copy: Path) -> Iterator[subprocess.Popen[str]]:
    """A program that runs while the checkout is compiled. It loads modules by name and prints from which file."""
    code = "import importlib, starlingmq\nwhile n := input(): print(importlib.import_module(n).__file__, flush=True)"
    words = [sys.executable, "-m", "compiling", "--meanwhile", sys.executable, "-c", code]
    environment = {**NOT_PURE, "PYTHONPATH": str(copy / "src"), "XDG_CACHE_HOME": str(copy / "cache")}
    pipe = subprocess.PIPE
    process = subprocess.Popen(words, cwd=copy, env=environment, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
    with process:
        try:
            yield process
        finally:
            process.kill()
            (copy / "go").touch()


def loaded(process: subprocess.Popen[str], name: str) -> str:
    assert process.stdin is not None and process.stdout is not None
    print(name, file=process.stdin, flush=True)
    return process.stdout.readline().strip()


def test_a_command_runs_interpreted_to_its_end_although_compiling_ends_before(
    copy: Path, command: subprocess.Popen[str]
) -> None:
    assert command.stderr is not None
    assert "interpreted" in command.stderr.readline()
    assert loaded(command, "starlingmq.wire.primitives").endswith("primitives.py")
    (copy / "go").touch()
    assert "restart" in command.stderr.readline()
    assert extensions_of(copy) == expected(copy) and Checkout(copy).up_to_date()
    assert loaded(command, "starlingmq.wire.nats_subjects").endswith("nats_subjects.py")


def test_compiling_ends_with_the_command_beside_which_it_runs(copy: Path, command: subprocess.Popen[str]) -> None:
    assert command.stderr is not None
    command.stderr.readline()
    loaded(command, "starlingmq.wire.primitives")
    waiting = copy / "started"
    while not (waiting.exists() and waiting.read_text()):
        os.sched_yield()
    command.send_signal(signal.SIGTERM)
    command.wait()
    assert command.stderr.read() == "", "what compiles holds this pipe too: it has ended, and has said nothing"
    assert not Checkout(copy).library.exists()


def objects_built(directory: Path) -> dict[str, int]:
    """Build a library of two C files; the object files by name, with the number of the file."""
    (directory / "main.c").write_text("#include <Python.h>\nPyObject *PyInit_sample(void) { return NULL; }\n")
    sources = [str(directory / name) for name in ("main.c", "other.c")]
    extension = Extension("sample", sources, depends=[str(directory / "header.h")], include_dirs=[str(directory)])
    command = BuildSideBySide(Distribution({"name": "sample", "ext_modules": [extension]}))
    command.build_lib, command.build_temp = str(directory / "lib"), str(directory / "temp")
    command.ensure_finalized()
    command.run()
    assert (directory / "lib" / f"sample{SUFFIX}").exists()
    return {path.name: path.stat().st_ino for path in (directory / "temp" / "objects").glob("*.o")}


def test_only_what_has_changed_is_compiled_again(tmp_path: Path) -> None:
    (tmp_path / "header.h").write_text("#define NUMBER 1\n")
    (tmp_path / "other.c").write_text("int other(void) { return 1; }\n")
    first = objects_built(tmp_path)
    assert len(first) == 2
    assert objects_built(tmp_path) == first
    (tmp_path / "other.c").write_text("int other(void) { return 2; }\n")
    second = objects_built(tmp_path)
    assert len(second) == 3 and second.items() >= first.items()
    (tmp_path / "header.h").write_text("#define NUMBER 2\n")
    assert len(objects_built(tmp_path)) == 5


LOOPS: Final = """
async def waits(self):
    async with asyncio.timeout(5):
        while not self.done:
            await self.event.wait()
async def reads(self):
    async with other(), asyncio.timeout_at(5) as limit:
        if self.more:
            async for each in self.stream:
                pass
async def in_turn(self):
    while True:
        async with asyncio.timeout(5):
            await self.event.wait()
async def elsewhere(self):
    async with asyncio.timeout(5):
        async def later():
            while True:
                await self.event.wait()
        for each in self.found:
            each.note()
"""


def loops_under_a_timeout(text: str) -> list[int]:
    """The lines of loops that wait inside ``async with asyncio.timeout``."""
    return [
        loop.lineno
        for block in ast.walk(ast.parse(text))
        if isinstance(block, ast.AsyncWith) and any("asyncio.timeout" in ast.unparse(item) for item in block.items)
        for loop in within_function(block)
        if isinstance(loop, ast.While | ast.For | ast.AsyncFor)
        and any(isinstance(each, ast.Await | ast.AsyncFor) for each in (loop, *within_function(loop)))
    ]


def within_function(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes below this one that are not in a function of their own."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield child
            yield from within_function(child)


def test_no_compiled_coroutine_waits_in_a_loop_under_a_timeout() -> None:
    """Compiled by mypyc, the loop goes on when the time is over, so nothing ends it."""
    assert loops_under_a_timeout(LOOPS) == [4, 9]
    found = {path: loops_under_a_timeout((ROOT / path).read_text()) for path in hot_modules()}
    assert {path: lines for path, lines in found.items() if lines} == {}
