"""Rules of the repository that no type checker knows: who may import whom, and what the pure parts may not touch."""

from __future__ import annotations

import ast
import json
import symtable
import tomllib
from collections.abc import Iterable, Iterator
from typing import Final

from tests.source_tree import PACKAGE, ROOT, imported, modules, ours, part, text, tree, walk

# A module may import from its own rank and from lower ones.
RANKS: Final = (
    (
        "_compiled",
        "_version",
        "_pure",
        "config",
    ),
    ("wire",),
    ("core",),
    ("cluster",),
    ("storage", "net", "auth", "hooks", "log", "client"),
    ("jetstream",),
    ("bridges", "rules"),
    ("admin", "api", "otel", "migrate"),
    ("bulk",),
    ("spark",),
    ("pipeline",),
    ("node",),
    ("pytest_plugin",),
    ("cli", "demo", "__main__"),
)
PURE: Final = ("wire", "core", "cluster")
PURE_IMPORTS: Final = {
    "__future__": "annotations",
    "array": "",
    "_blake2": "BLAKE2b without OpenSSL, which hashlib loads",
    "base64": "text of keys and of accept values",
    "bisect": "",
    "collections": "",
    "collections.abc": "",
    "dataclasses": "",
    "enum": "",
    "heapq": "",
    "ipaddress": "",
    "itertools": "",
    "json": "members in etcd",
    "librt.strings": "how compiled code writes bytes",
    "math": "",
    "mypy_extensions": "what the compiler is told about a class",
    "msgspec": "json of NATS clients, and copies of structs",
    "struct": "",
    "typing": "",
    "zlib": "crc32",
    "starlingmq.config.bridges_section": "settings are given as dataclasses",
    "starlingmq.config.links_section": "the same",
    "starlingmq.config.nats_section": "the same",
    "starlingmq.config.settings": "the same",
    "starlingmq.config.nkeys": "the text of a key",
}
"""Modules that the pure parts may import besides each other, and the purpose where the name does not tell it."""
PURE_ATTRIBUTES: Final = {"_blake2": {"blake2b"}, "zlib": {"crc32"}}
"""The only permitted attributes of these modules: the others open files, or have not been reviewed."""
# fmt: off
PURE_BUILTINS: Final = frozenset([
    "Exception", "KeyError", "NotImplementedError", "RecursionError", "TypeError", "UnicodeDecodeError", "ValueError",
    "OSError", "AssertionError", "IndexError", "LookupError", "OverflowError", "UnicodeEncodeError", "False", "None",
    "True",
    "abs", "all", "any", "bool", "bytearray", "bytes", "callable", "chr", "dict", "divmod", "enumerate", "filter",
    "float", "frozenset", "int", "isinstance", "issubclass", "iter", "len", "list", "map", "max", "memoryview", "min",
    "next", "object", "ord", "pow", "property", "range", "repr", "reversed", "round", "set", "slice", "sorted",
    "staticmethod", "classmethod", "str", "sum", "super", "tuple", "type", "zip", "__name__",
])
# fmt: on
"""Not among them: ``hash``, which differs from process to process, ``id``, which is an address; ``open``, ``input``,
``print``; functions that reach names by text (``eval``, ``exec``, ``__import__``, ``getattr``, ``globals``, ``vars``).
"""


def rank(module: str) -> int:
    for number, parts in enumerate(RANKS):
        if part(module) in parts:
            return number
    raise AssertionError(f"{module} has no rank: say in RANKS what it may import")


def test_imports_point_down() -> None:
    # The package itself offers everything, lazily; a module may take the version or the like from it.
    above = [
        f"{module} imports {name}"
        for module in modules()
        if module != PACKAGE
        for name in ours(module)
        if name != PACKAGE and rank(name) > rank(module)
    ]
    assert above == []


def impure_imports(source: ast.Module, names: Iterable[str]) -> Iterator[str]:
    """Of the full names that a pure module imports those that it may not, and what it may not use of a module."""
    for name in names:
        module, _, attribute = name.rpartition(".")
        if part(name) in PURE or name in PURE_IMPORTS:
            continue
        if module not in PURE_IMPORTS or attribute not in PURE_ATTRIBUTES.get(module, {attribute}):
            yield name
    for node in walk(source):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            module = node.value.id
            if module in PURE_ATTRIBUTES and node.attr not in PURE_ATTRIBUTES[module]:
                yield f"{module}.{node.attr}"


def impure_names(source: str) -> set[str]:
    """Names that are defined nowhere in the module, so that they are builtins, and not of those that are allowed."""
    top = symtable.symtable(source, "", "exec")
    defined = {each.get_name() for each in top.get_symbols() if each.is_assigned() or each.is_imported()}
    found, waiting = set[str](), [top]
    while waiting:
        scope = waiting.pop()
        waiting += scope.get_children()
        for each in scope.get_symbols():
            if each.is_referenced() and (scope is top or each.is_global()) and each.get_name() not in defined:
                found.add(each.get_name())
    return found - PURE_BUILTINS


def test_pure_parts_do_nothing_but_compute() -> None:
    found = [
        f"{module} uses {name}"
        for module in modules()
        if part(module) in PURE
        for name in sorted({*impure_imports(tree(module), imported(module)), *impure_names(text(module))})
    ]
    assert found == [], "no clock, chance, environment or I/O below the shell"


def test_impure_imports_and_calls_are_found() -> None:
    for line in ("open('x')", "def f(): return hash(1)", "class A:\n  def f(self): return id(self)", "x = __file__"):
        assert impure_names(line), line
    for line in ("def f(open): return open(1)", "def hash(): pass\nhash()", "for id in (): id"):
        assert not impure_names(line), line
    for name in ("time", "time.monotonic", "os.path", "random.Random", "starlingmq.net.peers", "hashlib.file_digest"):
        assert list(impure_imports(ast.parse(""), [name])), name
    assert list(impure_imports(ast.parse("zlib.compress(f)"), ["zlib"])) == ["zlib.compress"]


def test_the_pure_parts_need_all_that_they_may_import() -> None:
    names = {name for module in modules() if part(module) in PURE for name in imported(module)}
    used = names | {name.rpartition(".")[0] for name in names}
    assert sorted(set(PURE_IMPORTS) - used) == []


def searched_for_bytes(code: ast.AST) -> Iterator[int]:
    """Lines with ``b"+" in name``, which takes six times as long as ``PLUS in name`` (wire.characters), or ``find``."""
    for node in walk(code):
        if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In | ast.NotIn):
            left, right = node.left, node.comparators[0]
            if isinstance(left, ast.Constant) and isinstance(left.value, bytes) and not isinstance(right, ast.Tuple):
                yield node.lineno


def test_names_are_searched_the_fast_way() -> None:
    assert list(searched_for_bytes(ast.parse('b"+" in topic or b"#" not in topic or name in (b"+", b"#")'))) == [1, 1]
    slow = [(name, line) for name in modules() if part(name) in PURE for line in searched_for_bytes(tree(name))]
    assert slow == []


def test_every_file_is_reached() -> None:
    """From the entry points, by imports or by a module name in a string (the table of commands, lazy exports)."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    groups = [project["scripts"], *project.get("entry-points", {}).values()]
    waiting = [PACKAGE, f"{PACKAGE}.__main__", f"{PACKAGE}.spark"]  # the last is what programs for Spark import
    waiting += [target.partition(":")[0] for group in groups for target in group.values()]
    reached: set[str] = set()
    while waiting:
        module = waiting.pop()
        if module in reached or module not in modules():
            continue
        reached.add(module)
        waiting += ours(module)
        waiting += [module.rpartition(".")[0]]
        strings = (node.value for node in walk(tree(module)) if isinstance(node, ast.Constant))
        waiting += [text for text in strings if isinstance(text, str) and text in modules()]
    assert [name for name in modules() if name not in reached] == []


def test_a_cancelled_task_ends() -> None:
    """``asyncio.wait_for`` of Python 3.11 swallows a cancellation that arrives in the same turn as the result, and the
    task goes on; ``asyncio.timeout`` does not."""
    found = [
        f"{module}:{node.lineno}"
        for module in modules()
        for node in walk(tree(module))
        if isinstance(node, ast.Attribute) and ast.unparse(node) == "asyncio.wait_for"
    ]
    assert found == []


def test_the_lock_of_the_javascript_client_names_no_registry() -> None:
    lock = json.loads((ROOT / "tests/js/package-lock.json").read_text(encoding="utf-8"))
    assert [name for name, package in lock["packages"].items() if "resolved" in package] == []
