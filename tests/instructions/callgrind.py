"""Counts the instructions of cells with callgrind, which gives the same number on a busy machine as on a quiet one."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from tests.instructions.counted import EMPTY

from compiling.modules import LIBRARY, PACKAGE, ROOT

HEADER: Final = Path("/usr/include/valgrind/callgrind.h")
SECONDS_MAX: Final = 300.0
UNKNOWN: Final = "unknown compiler"


def missing() -> str:
    """The tools that are missing for counting; "" if none is."""
    if shutil.which("valgrind") is None or not HEADER.exists():
        return "valgrind is not installed: apt-get install valgrind"
    if shutil.which("cc") is None:
        return "there is no C compiler"
    return ""


def toolchain() -> str:
    """All that instruction counts depend on beside the sources. Counts of two toolchains cannot be compared."""
    libc = " ".join(platform.libc_ver())
    return (
        f"{platform.machine()}, {libc}, CPython {platform.python_version()} ({platform.python_compiler()}), "
        f"mypy {importlib.metadata.version('mypy')}, {modules_compiler()}"
    )


def modules_compiler() -> str:
    """By which the hot modules were compiled, as it has written into them itself."""
    for library in (ROOT / PACKAGE.parent).glob(f"{LIBRARY}*.so"):
        found = re.search(rb"(GCC: \([^)]*\)|clang version) [0-9.]+", library.read_bytes())
        if found:
            return found[0].decode()
    return UNKNOWN


def count(names: list[str], place: Path) -> dict[str, float]:
    """Instructions per message of each cell. ``place`` is an empty directory; the output of callgrind stays there."""
    library = place / "collecting.so"
    source = Path(__file__).with_name("collecting.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True, timeout=SECONDS_MAX)
    command = ["valgrind", "--tool=callgrind", "--instr-atstart=no", "--collect-atstart=no", "--dump-instr=no"]
    command += [f"--callgrind-out-file={place / 'found'}", sys.executable, "-m", "tests.instructions.counted"]
    environment = os.environ | {"PYTHONHASHSEED": "0", "PYTHONMALLOC": "pymalloc"}
    asked = [EMPTY, *names]
    done = subprocess.run(
        [*command, str(library), *asked],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"valgrind ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    work = json.loads(done.stdout)
    totals = {name: total(place / f"found.{number}") for number, name in enumerate(asked, 1)}
    itself = totals[EMPTY] / work[EMPTY][0]  # the cost of starting and stopping the count
    return {name: round((totals[name] - work[name][0] * itself) / work[name][1], 1) for name in names}


def total(file: Path) -> int:
    found = re.search(r"^(?:totals|summary): (\d+)", file.read_text(), re.MULTILINE)
    assert found is not None, f"no total in {file}"
    return int(found[1])
