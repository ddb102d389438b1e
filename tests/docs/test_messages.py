"""Messages are in plain English: errors, log lines, help and labels, as the pages are (test_language).

Every string of the sources counts that is no docstring and no note below a field.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.docs.blocks import ROOT
from tests.docs.test_language import DIALECT
from tests.source_tree import parsed, walk

SOURCE = ROOT / "src/starlingmq"
SOURCES = sorted(SOURCE.rglob("*.py"))
JETSTREAM = SOURCE / "jetstream"  # its errors have nats-server's words


def messages(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and text of each string, without those that are statements of their own."""
    nodes = walk(tree)
    notes = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in notes:
            yield node.lineno, node.value


def test_messages_have_no_dialect() -> None:
    found = [
        f"{path.relative_to(SOURCE)}:{line}: {text}"
        for path in SOURCES
        for line, text in messages(parsed(path))
        if DIALECT.search(text.replace("can not", "") if JETSTREAM in path.parents else text)
    ]
    assert found == [], "see docs/GLOSSARY.md for the terms"


def test_dialect_is_found_in_messages_only() -> None:
    source = '"""It begins anew."""\nraise ValueError(f"{name} can not be read")\nx = 1\n"""Whoever reads it."""\n'
    assert [text for _, text in messages(ast.parse(source)) if DIALECT.search(text)] == [" can not be read"]
