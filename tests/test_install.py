"""A wheel that is installed into an empty environment by pip: what it brings is all that a broker needs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from starlingmq import compiled

pytestmark = [pytest.mark.long(alone="installs into an empty environment, and compiles"), pytest.mark.timeout(2400)]

ROOT: Final = Path(__file__).parent.parent
OF_A_BUILD: Final = ("src", "compiling", "setup.py", "pyproject.toml", "README.md", "LICENSE")
LEFT_OUT: Final = shutil.ignore_patterns("*.so", "__pycache__", "*.egg-info")
PATIENCE: Final = 60.0


def run(*command: str | Path, **more: str) -> str:
    """The output of a command. It runs without this environment's PYTHON* and STARLINGMQ_* variables."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "STARLINGMQ_"))}
    done = subprocess.run(command, env=env | more, capture_output=True, text=True, timeout=2000)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


@pytest.fixture(params=[True, False], ids=["interpreted", "compiled"])
def wheel(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, bool]:
    """The file, and whether its hot modules are not compiled."""
    pure = bool(request.param)
    if not pure and not compiled():
        pytest.skip("this environment is not for compiling")
    sources = tmp_path / "sources"
    for name in OF_A_BUILD:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, sources / name, ignore=LEFT_OUT)
        else:
            shutil.copy(ROOT / name, sources / name)
    how = {"STARLINGMQ_PURE": "1"} if pure else {"STARLINGMQ_COMPILE": "1"}
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check")
    run(*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", tmp_path / "dist", sources, **how)
    (found,) = (tmp_path / "dist").glob("*.whl")
    assert found.name.endswith("-none-any.whl") == pure, found.name
    return found, pure


@contextmanager
def serving(command: Path, directory: Path) -> Iterator[str]:
    """A broker of the environment; its URL."""
    process = subprocess.Popen(
        [command, "serve", "--listen", "mqtt://127.0.0.1:0", "--data-dir", directory / "data"],
        stdout=subprocess.PIPE,
        text=True,
        cwd=directory,
    )
    try:
        assert process.stdout is not None
        ready = process.stdout.readline().split()
        assert ready[0] == "ready", ready
        yield ready[1]
        process.terminate()
        assert process.wait(PATIENCE) == 0
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def test_it_serves_from_an_empty_environment(wheel: tuple[Path, bool], tmp_path: Path) -> None:
    file, pure = wheel
    place = tmp_path / "venv"
    venv.create(place, with_pip=True)
    python, command = place / "bin" / "python", place / "bin" / "starlingmq"
    run(python, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", file)
    told = run(python, "-c", "import starlingmq; print(starlingmq.__file__, starlingmq.compiled())", PYTHONPATH="")
    where, is_compiled = told.split()
    assert Path(where).is_relative_to(place) and is_compiled == str(not pure)
    assert ("interpreted" in run(command, "--version")) == pure
    with serving(command, tmp_path) as url:
        host, port = url.removeprefix("mqtt://").split(":")
        run(command, "pub", "-h", host, "-p", port, "-t", "a/b", "-m", "kept", "-q", "1", "-r")
        got = run(command, "sub", "-h", host, "-p", port, "-t", "a/#", "-C", "1", "-W", "30")
        assert "kept" in got
    with serving(command, tmp_path) as url:  # and it finds again what it had
        host, port = url.removeprefix("mqtt://").split(":")
        assert "kept" in run(command, "sub", "-h", host, "-p", port, "-t", "a/#", "-C", "1", "-W", "30")
