"""The compiled modules are those of compiling/modules.py: all of them, and no others."""

from __future__ import annotations

import ast
import importlib
import os
import re
import sys
from functools import cache
from pathlib import Path
from typing import Final

import pytest

import starlingmq
from compiling.checkout import Checkout
from compiling.modules import INTERPRETED, MODULES, PACKAGE, PACKAGES, ROOT, MissingModule, hot_modules, module_name
from tests.source_tree import modules, ours, part, statements

MAY_BE_INTERPRETED: Final = ("config", "nkeys")
"""Interpreted modules that the compiled packages import and do not call for each message."""


@cache
def hot_names() -> frozenset[str]:
    return frozenset(module_name(path) for path in hot_modules())


def loaded_from(name: str) -> Path:
    return Path(str(importlib.import_module(name).__file__))


def test_a_listed_module_is_compiled_when_the_package_is() -> None:
    files = [loaded_from(name) for name in sorted(hot_names())]
    assert [file for file in files if (file.suffix == ".so") != starlingmq.compiled()] == []


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


def test_no_compiled_struct_names_a_type_that_compiled_code_forgets() -> None:
    """mypyc keeps ``type`` for an annotation that is no class, and msgspec would decode by that."""
    found = []
    for path in hot_modules():
        for each in statements(module_name(path)):
            if isinstance(each, ast.ClassDef) and any("Struct" in ast.unparse(base) for base in each.bases):
                notes = [ast.unparse(one.annotation) for one in each.body if isinstance(one, ast.AnnAssign)]
                found += [f"{path}: {each.name}" for note in notes if re.search(r"Literal|Annotated|\bAny\b", note)]
    assert found == []


def test_no_compiled_struct_has_class_options() -> None:
    """mypyc discards the keywords of a class statement, so msgspec encodes other bytes, such as a map for an array."""
    found = {
        f"{path}: {each.name}"
        for path in hot_modules()
        for each in statements(module_name(path))
        if isinstance(each, ast.ClassDef)
        and each.keywords
        and any("Struct" in ast.unparse(base) for base in each.bases)
    }
    assert found == set()


def test_compiled_modules_import_only_what_a_build_installs() -> None:
    """mypyc refuses all of them for one library without types, and the broker runs interpreted then."""
    lines = (ROOT / "requirements" / "build.txt").read_text(encoding="utf-8").splitlines()
    installed = {line.partition("==")[0].replace("-", "_") for line in lines if "==" in line}
    known = {"starlingmq", *installed, *sys.stdlib_module_names}
    found = [
        f"{path}: {name}"
        for path in hot_modules()
        for each in statements(module_name(path))
        for name in imported_by(each)
        if name.partition(".")[0] not in known
    ]
    assert found == []


def imported_by(node: ast.AST) -> list[str]:
    """The modules that an import statement names, apart from relative ones."""
    if isinstance(node, ast.Import):
        return [each.name for each in node.names]
    return [node.module] if isinstance(node, ast.ImportFrom) and node.module and node.level == 0 else []


def inherited(name: str) -> dict[str, str]:
    """The classes of a module that inherit from one that it imports from a compiled module, and from which."""
    imported = {
        alias.asname or alias.name: node.module
        for node in statements(name)
        if isinstance(node, ast.ImportFrom) and node.module in hot_names()
        for alias in node.names
    }
    found: dict[str, str] = {}
    for node in statements(name):
        if isinstance(node, ast.ClassDef):
            for base in node.bases:
                if isinstance(base, ast.Name) and base.id in imported:
                    found[node.name] = f"{imported[base.id]}.{base.id}"
    return found


def allows_interpreted(name: str) -> bool:
    """Whether a class is an exception, or says that interpreted classes may inherit from it."""
    module, _, kind = name.rpartition(".")
    found = getattr(importlib.import_module(module), kind)
    source = (ROOT / PACKAGE.parent / Path(*module.split("."))).with_suffix(".py").read_text(encoding="utf-8")
    allowed = re.search(rf"allow_interpreted_subclasses=True.*\)\nclass {kind}\b", source)
    return issubclass(found, Exception) or allowed is not None


def test_no_interpreted_class_inherits_from_a_compiled_one() -> None:
    """Python refuses that when the class is made, and only where the modules are compiled."""
    wrong = [
        f"{name}: {kind}({base})"
        for name in modules()
        if name not in hot_names()
        for kind, base in inherited(name).items()
        if not allows_interpreted(base)
    ]
    assert not wrong, "list these modules in compiling/modules.py"


def same_files(directory: Path) -> None:
    """The modules as empty files: only their places count."""
    for path in (ROOT / PACKAGE).rglob("*.py"):
        place = directory / path.relative_to(ROOT)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.touch()


def test_each_package_has_modules_at_any_depth(tmp_path: Path) -> None:
    same_files(tmp_path)
    nested = tmp_path / PACKAGE / PACKAGES[0] / "deep" / "deeper"
    nested.mkdir(parents=True)
    for name in ("__init__.py", "new.py"):
        (nested / name).touch()
    added = set(hot_modules(tmp_path)) - set(hot_modules())
    assert added == {str(PACKAGE / PACKAGES[0] / "deep" / "deeper" / "new.py")}


@pytest.mark.parametrize("entry", [next(iter(MODULES)), PACKAGES[0], next(iter(INTERPRETED))])
def test_a_listed_module_that_moved_stops_the_build(entry: str, tmp_path: Path) -> None:
    same_files(tmp_path)
    (tmp_path / PACKAGE / entry).rename(tmp_path / PACKAGE / "elsewhere")
    with pytest.raises(MissingModule, match=entry):
        hot_modules(tmp_path)


def test_a_module_of_a_compiled_package_imports_only_compiled_modules() -> None:
    """A module that moves out of these packages would otherwise run interpreted, and nothing would say so."""
    found = [
        f"{name} imports {other}"
        for name in sorted(hot_names())
        if part(name) in PACKAGES
        for other in ours(name, at_runtime=True)
        if modules()[other].name != "__init__.py"
        if other not in hot_names() and part(other) not in MAY_BE_INTERPRETED
    ]
    assert found == []
