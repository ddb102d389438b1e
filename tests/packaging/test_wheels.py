"""The wheels that `make wheels` has made, installed as users install them (`make test-wheels`)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

import starlingmq
from tests.packaging.test_install import ROOT, run, works

pytestmark = [pytest.mark.long(alone="needs the wheels of make wheels"), pytest.mark.shipped, pytest.mark.timeout(900)]

VENVS: Final = ROOT / "build" / "wheels"
COMPILED: Final = f"starlingmq {starlingmq.__version__} (compiled)\n"


def wheels() -> list[Path]:
    return sorted((ROOT / "dist").glob(f"starlingmq-{starlingmq.__version__}-cp3*manylinux*.whl"))


def python_of(wheel: Path) -> Path:
    """The interpreter that the wheel was made with."""
    (minor,) = re.findall(r"-cp3(\d+)-", wheel.name)
    return (VENVS / f"venv-3.{minor}" / "bin" / "python").resolve()


WHEELS: Final = wheels() or [ROOT / "dist" / "missing: make wheels"]


def test_there_is_a_wheel() -> None:
    assert wheels(), "make wheels first"


@pytest.mark.parametrize("wheel", WHEELS, ids=lambda path: path.name)
def test_pip_installs_it_with_the_extras_of_the_readme(wheel: Path, tmp_path: Path) -> None:
    run(str(python_of(wheel)), "-m", "venv", str(tmp_path / "venv"))
    pip = (str(tmp_path / "venv/bin/python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    run(*pip, f"{wheel}[http,auth,cluster]")
    program = str(tmp_path / "venv/bin/starlingmq")
    assert run(program, "--version") == COMPILED
    works(program)


@pytest.mark.parametrize("wheel", WHEELS, ids=lambda path: path.name)
def test_uv_installs_it_as_a_tool(wheel: Path, tmp_path: Path) -> None:
    uv = ROOT / ".venv" / "bin" / "uv"
    tool = str(uv) if uv.exists() else "uv"
    places = {"UV_TOOL_DIR": str(tmp_path / "tools"), "UV_TOOL_BIN_DIR": str(tmp_path / "bin")}
    run(tool, "tool", "install", "--quiet", "--python", str(python_of(wheel)), str(wheel), directory=None, **places)
    assert run(str(tmp_path / "bin/starlingmq"), "--version") == COMPILED
    works(str(tmp_path / "bin/starlingmq"))


@pytest.mark.parametrize("wheel", WHEELS, ids=lambda path: path.name)
def test_pipx_installs_it(wheel: Path, tmp_path: Path) -> None:
    places = {"PIPX_HOME": str(tmp_path / "home"), "PIPX_BIN_DIR": str(tmp_path / "bin")}
    (minor,) = re.findall(r"-cp3(\d+)-", wheel.name)
    pipx = VENVS / f"venv-3.{minor}" / "bin" / "pipx"
    run(str(pipx), "install", "--python", str(python_of(wheel)), str(wheel), directory=None, **places)
    assert run(str(tmp_path / "bin/starlingmq"), "--version") == COMPILED
    works(str(tmp_path / "bin/starlingmq"))
