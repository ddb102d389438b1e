"""The requirements of compiling: a C compiler and the headers of Python."""

from __future__ import annotations

import os
import shlex
import shutil
import sysconfig
from pathlib import Path


def missing() -> str:
    """Return the missing requirements; empty if there are none."""
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")[0]
    if shutil.which(compiler) is None:
        return f"there is no C compiler {compiler} (apt-get install gcc libc6-dev python3-dev)"
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        return "the headers of Python are not installed (apt-get install python3-dev)"
    return ""
