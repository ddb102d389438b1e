"""The compiled modules are those of compiling/modules.py: all of them, and no others."""

from __future__ import annotations

import importlib
import os
import shutil
from pathlib import Path
from typing import Final

import pytest

import starlingmq
from compiling.checkout import Checkout
from compiling.modules import MODULES, PACKAGE, PACKAGES, ROOT, MissingModule, hot_modules, module_name
from tests.source_tree import modules, ours, part

MAY_BE_INTERPRETED: Final = ("config", "nkeys")
"""What the packages that are compiled as a whole import of ours and do not call for each message."""


def hot_names() -> set[str]:
    return {module_name(path) for path in hot_modules()}


def loaded_from(name: str) -> Path:
    return Path(str(importlib.import_module(name).__file__))


@pytest.mark.parametrize("name", sorted(hot_names()))
def test_a_listed_module_is_compiled_when_the_package_is(name: str) -> None:
    assert (loaded_from(name).suffix == ".so") == starlingmq.compiled(), loaded_from(name)


def test_nothing_compiled_is_loaded_when_the_environment_says_pure() -> None:
    if os.environ.get("STARLINGMQ_PURE", "") not in ("", "0"):
        assert not starlingmq.compiled()


def test_no_other_module_is_compiled() -> None:
    left = [path for path in (ROOT / PACKAGE).rglob("*.so") if module_name_of(path) not in hot_names()]
    assert not left, "extension modules without a source in the list: make clean"


def module_name_of(extension: Path) -> str:
    stem = extension.name.partition(".")[0]
    return ".".join([*extension.parent.relative_to(ROOT / PACKAGE.parent).parts, stem])


@pytest.mark.compiled_only
def test_the_compiled_modules_are_those_of_the_sources() -> None:
    assert starlingmq.compiled(), "the hot modules are not compiled: make setup"
    assert Checkout().up_to_date(), "the sources are newer than what runs: make setup"


def test_each_package_has_modules_at_any_depth(tmp_path: Path) -> None:
    shutil.copytree(ROOT / PACKAGE, tmp_path / PACKAGE, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    nested = tmp_path / PACKAGE / PACKAGES[0] / "deep" / "deeper"
    nested.mkdir(parents=True)
    for name in ("__init__.py", "new.py"):
        (nested / name).touch()
    added = set(hot_modules(tmp_path)) - set(hot_modules())
    assert added == {str(PACKAGE / PACKAGES[0] / "deep" / "deeper" / "new.py")}


@pytest.mark.parametrize("entry", [next(iter(MODULES)), PACKAGES[0]])
def test_a_listed_module_that_moved_stops_the_build(entry: str, tmp_path: Path) -> None:
    shutil.copytree(ROOT / PACKAGE, tmp_path / PACKAGE, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    (tmp_path / PACKAGE / entry).rename(tmp_path / PACKAGE / "elsewhere")
    with pytest.raises(MissingModule, match=entry):
        hot_modules(tmp_path)


@pytest.mark.parametrize("name", sorted(name for name in hot_names() if part(name) in PACKAGES))
def test_a_module_of_a_compiled_package_imports_only_compiled_modules(name: str) -> None:
    """A module that moves out of these packages would otherwise run interpreted, and nothing would say so."""
    files = {other for other in ours(name, at_runtime=True) if modules()[other].name != "__init__.py"}
    assert {other for other in files - hot_names() if part(other) not in MAY_BE_INTERPRETED} == set()
