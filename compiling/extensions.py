"""The C of the hot modules, by mypyc: one C file for each module, all of them linked into one library.

One library, because calls between the modules are then calls of C functions and attributes are struct fields. Many C
files, because several compilers then run side by side, and because one file of all modules costs GCC more than the sum.
The library hides its symbols, so the linker binds those calls directly. Measured on the core (CPU for each message),
this is as fast as one C file, or faster by up to 8 %; without hiding it is 3 to 8 % slower. Level -O3 gains nothing,
-O1 loses 8 %.
"""

from __future__ import annotations

import gc
import os
import sys
from typing import Final

from setuptools import Extension

from compiling.modules import LIBRARY, ROOT, hot_modules

GROUP: Final = LIBRARY.removesuffix("__mypyc")

COMPILER_FLAGS: Final = [
    "-g0",
    "-fvisibility=hidden",
    "-fno-semantic-interposition",
    "-Wno-misleading-indentation",  # to look for this, GCC reads deeply indented code again and again
]
LINKER_FLAGS: Final = ["-Wl,-Bsymbolic"] if sys.platform == "linux" else []


class NotCompiled(Exception):
    """mypyc refuses the sources. It has printed its reasons."""


def extensions(c_directory: str = "build/c") -> list[Extension]:
    """The library first, then an extension module for each hot module. NotCompiled when mypyc refuses a source."""
    from mypyc.build import mypycify

    os.chdir(ROOT)
    # What is imported only for types is read and not judged: pip builds where most of our dependencies are missing.
    read = ["--follow-imports=silent", *hot_modules()]
    try:
        found = mypycify(
            read, opt_level="2", debug_level="0", multi_file=True, group_name=GROUP, target_dir=c_directory
        )
    except SystemExit as error:
        raise NotCompiled(f"mypyc refuses it ({error})") from error
    gc.freeze()  # or the collector walks through the trees of mypy several times when Python ends: 20 seconds
    made = [extension for extension in found if isinstance(extension, Extension)]
    if os.name == "posix":
        for extension in made:
            extension.extra_compile_args += COMPILER_FLAGS
            extension.extra_link_args += LINKER_FLAGS
    return made
