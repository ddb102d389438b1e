"""The released files install into an empty environment, with every Python that is found here, and then work."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

import starlingmq

ROOT: Final = Path(__file__).resolve().parent.parent.parent
VERSION: Final = starlingmq.__version__
SUMMARY: Final = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["description"]
FILES: Final = ("setup.py", "pyproject.toml", "README.md", "LICENSE", "MANIFEST.in", "CHANGELOG.md")
BUILD: Final = "import sys; from setuptools import build_meta; print(getattr(build_meta, sys.argv[1])('dist'))"
COMPILING: Final = tuple(f"compiling/{path.name}" for path in sorted((ROOT / "compiling").iterdir()) if path.is_file())
VERSIONS: Final = ("3.11", "3.12", "3.13")
NO_COMPILER: Final = "/nonexistent/cc"
PATIENCE: Final = 1500  # compiling takes minutes

pytestmark = [pytest.mark.long(alone="installs into empty environments, and compiles"), pytest.mark.timeout(900)]


def python_of(version: str) -> str | None:
    """An interpreter of this version, if there is one here: on the path, or beside others. Starts those it looks at."""
    places = [shutil.which(f"python{version}") or "", *Path.home().glob(f".pyenv/versions/{version}.*/bin/python")]
    if sys.version.startswith(f"{version}."):
        places.insert(0, sys.base_prefix + "/bin/python3")
    for place in filter(None, map(str, places)):
        said = subprocess.run([place, "--version"], capture_output=True, text=True, check=False)
        if said.returncode == 0 and said.stdout.startswith(f"Python {version}."):
            return place
    return None


@pytest.fixture(params=VERSIONS)
def python(request: pytest.FixtureRequest) -> str:
    found = python_of(request.param)
    if found is None:
        pytest.skip(f"there is no Python {request.param} here")
    return found


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the source distribution and the pure wheel are, made of the files of the repository alone."""
    directory = tmp_path_factory.mktemp("source")
    shutil.copytree(ROOT / "src", directory / "src", ignore=shutil.ignore_patterns("*.so", "__pycache__", "*.egg-info"))
    shutil.copytree(ROOT / "tests", directory / "tests", ignore=shutil.ignore_patterns("node_modules", "__pycache__"))
    (directory / "compiling").mkdir()
    for name in (*FILES, *COMPILING):
        shutil.copy(ROOT / name, directory / name)
    for what in ("build_sdist", "build_wheel"):
        run(sys.executable, "-c", BUILD, what, directory=directory, STARLINGMQ_PURE="1")
    return directory / "dist"


def run(*words: str, directory: Path | None = None, **more: str) -> str:
    """The output of a command, on stdout and stderr."""
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "STARLINGMQ_PURE")}
    done = subprocess.run(
        words,
        cwd=directory,
        env={**environment, **more},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    return done.stdout


def install(python: str, directory: Path, what: str, *options: str, **more: str) -> str:
    """Install into a new environment; returns pip's output."""
    run(python, "-m", "venv", str(directory))
    pip = (str(directory / "bin/python"), "-m", "pip", "install", "--disable-pip-version-check")
    return run(*pip, *options, what, directory=None, **more)


@contextmanager
def served(program: str) -> Iterator[str]:
    """The address of a broker that is served by an installed program."""
    command = [program, "serve", "--listen", "mqtt://127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={"PATH": "/usr/bin:/bin"}) as broker:
        assert broker.stdout is not None
        try:
            yield broker.stdout.readline().split()[1]
        finally:
            broker.terminate()


def works(program: str) -> None:
    with served(program) as address:
        run(program, "pub", "-L", f"{address}/greenhouse", "-m", "21.5", "-r", "-q", "1")
        assert run(program, "sub", "-L", f"{address}/greenhouse", "-C", "1", "-v") == "greenhouse 21.5\n"


def test_source_distribution_and_wheel_have_their_files(built: Path) -> None:
    (sdist,), (wheel,) = built.glob("*.tar.gz"), built.glob("*.whl")
    assert wheel.name == f"starlingmq-{VERSION}-py3-none-any.whl"
    package = {str(path.relative_to(ROOT / "src")) for path in (ROOT / "src/starlingmq").rglob("*") if path.is_file()}
    package = {name for name in package if not name.endswith((".pyc", ".so"))}
    with zipfile.ZipFile(wheel) as archive:
        inside = {name for name in archive.namelist() if not name.startswith(f"starlingmq-{VERSION}.dist-info/")}
        assert inside == package
        assert f"starlingmq-{VERSION}.dist-info/licenses/LICENSE" in archive.namelist()
        said = archive.read(f"starlingmq-{VERSION}.dist-info/METADATA").decode()
    assert "License-Expression: Apache-2.0" in said and f"Summary: {SUMMARY}\n" in said
    assert said.endswith((ROOT / "README.md").read_text())
    assert {"starlingmq/api/ui/index.html", "starlingmq/net/proto/etcd.proto", "starlingmq/py.typed"} <= package
    with tarfile.open(sdist) as source:
        there = [member.name.removeprefix(f"starlingmq-{VERSION}/") for member in source if member.isfile()]
    files = {name for name in there if not _is_written(name)}
    assert files == {f"src/{name}" for name in package} | {*FILES, *COMPILING}


def _is_written(name: str) -> bool:
    """By the build itself."""
    return ".egg-info" in name or name.endswith(("PKG-INFO", "setup.cfg"))


def test_the_wheel_installs_and_works(built: Path, tmp_path: Path, python: str) -> None:
    (wheel,) = built.glob("*.whl")
    install(python, tmp_path / "venv", str(wheel))
    program = str(tmp_path / "venv/bin/starlingmq")
    assert run(program, "--version") == f"starlingmq {VERSION} (interpreted)\n"
    works(program)


def test_the_source_installs_without_a_compiler_and_says_so_once(built: Path, tmp_path: Path, python: str) -> None:
    (sdist,) = built.glob("*.tar.gz")
    said = install(python, tmp_path / "venv", str(sdist), "--verbose", CC=NO_COMPILER)
    warnings = [line.strip() for line in said.splitlines() if "warning: starlingmq" in line]
    assert len(warnings) == 1
    assert re.search(rf"is not compiled .*: there is no C compiler {NO_COMPILER} \(apt-get install", warnings[0])
    program = str(tmp_path / "venv/bin/starlingmq")
    assert run(program, "--version") == f"starlingmq {VERSION} (interpreted)\n"
    works(program)


@pytest.mark.timeout(1800)
@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
def test_the_source_is_compiled_where_there_is_a_compiler(built: Path, tmp_path: Path) -> None:
    """pip builds in an environment that lacks most dependencies: that must be enough for mypyc."""
    (sdist,) = built.glob("*.tar.gz")
    newest = next(filter(None, map(python_of, reversed(VERSIONS))))
    said = install(newest, tmp_path / "venv", str(sdist), "--verbose")
    program = str(tmp_path / "venv/bin/starlingmq")
    why = [line for line in said.splitlines() if "warning: starlingmq" in line or "error: " in line]
    assert run(program, "--version") == f"starlingmq {VERSION} (compiled)\n", (why, said[-3000:])
    works(program)


def test_the_command_is_used_from_elsewhere_as_pipx_does(built: Path, tmp_path: Path) -> None:
    """Its environment stays private: only a link to the command is on the path."""
    (wheel,) = built.glob("*.whl")
    install(sys.executable, tmp_path / "venv", f"{wheel}[cluster,http]")
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "starlingmq"
    program.symlink_to(tmp_path / "venv/bin/starlingmq")
    works(str(program))
    assert "starting three nodes" in run(str(program), "demo", "--devices", "5", "--minutes", "0.1", "--no-faults")
