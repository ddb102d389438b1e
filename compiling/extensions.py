"""The C of the hot modules, by mypyc: one C file for each module, all of them linked into one library.

One library, because calls between the modules are then calls of C functions and attributes are struct fields. Many C
files, because several compilers can then run at the same time, and because GCC takes longer for one file of all
modules. The library hides its symbols, so the linker binds those calls directly. Measured on the core (CPU per
message), this is as fast as one C file, or up to 8 % faster; without hidden symbols it is 3 to 8 % slower. Level -O3
gains nothing, -O1 costs 8 %; modules that run seldom are compiled with it (``modules.SELDOM``).
"""

from __future__ import annotations

import gc
import os
import sys
from typing import Final

from setuptools import Extension

from compiling.modules import LIBRARY, ROOT, hot_modules

GROUP: Final = LIBRARY.removesuffix("__mypyc")
READ: Final = "compiling/mypy.ini"

COMPILER_FLAGS: Final = [
    "-g0",
    "-fvisibility=hidden",
    "-fno-semantic-interposition",
    "-Wno-misleading-indentation",  # this check is slow for deeply indented code
]
LINKER_FLAGS: Final = ["-Wl,-Bsymbolic"] if sys.platform == "linux" else []


class NotCompiled(Exception):
    """mypyc rejects the sources. It has printed the reasons."""


def extensions(c_directory: str = "build/c") -> list[Extension]:
    """Return the library, then an extension module for each hot module. Raises NotCompiled if mypyc rejects a
    source.
    """
    from mypyc.build import mypycify

    os.chdir(ROOT)
    read = [f"--config-file={READ}", *hot_modules()]
    try:
        found = mypycify(
            read, opt_level="2", debug_level="0", multi_file=True, group_name=GROUP, target_dir=c_directory
        )
    except SystemExit as error:
        raise NotCompiled(f"mypyc refuses it ({error})") from error
    gc.freeze()  # otherwise garbage collection of mypy's trees takes 20 seconds at exit
    made = [extension for extension in found if isinstance(extension, Extension)]
    if os.name == "posix":
        for extension in made:
            # Lists of their own: mypyc gives all extensions the same one.
            extension.extra_compile_args = [*extension.extra_compile_args, *COMPILER_FLAGS]
            extension.extra_link_args = [*extension.extra_link_args, *LINKER_FLAGS]
    return made
