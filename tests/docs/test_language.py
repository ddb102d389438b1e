"""Pages, docstrings and comments are in plain English: phrases of the project's earlier dialect do not return.

Code, quoted messages and links are left out. ``OWN_PAGES`` are generated from the code, or list what happened. Pages
are checked for ``DIALECT``; docstrings and comments of the folders in ``PLAIN_FOLDERS`` for ``DIALECT_IN_CODE`` too.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.docs.blocks import PAGES
from tests.source_tree import GENERATED, ROOT, parsed

OWN_PAGES: Final = ("ACTIONS.md", "CHANGELOG.md", "CONFIGURATION.md", "CONFORMANCE.md", "STATUS.md")
NO_PROSE: Final = re.compile(r"^ *```.*?^ *```$|`[^`\n]*`|\]\([^)]*\)|<!--.*?-->", re.MULTILINE | re.DOTALL)
DIALECT: Final = re.compile(
    r"\banew\b|\bcan not\b|\bwhoever\b|\bwhosoever\b|\bbe it that\b|\bof (?:which|whom) nobody\b|\blasting session"
    r"|\bnobody's\b|\bin line (?:at|there|here)\b|\bmay come in\b|\bwhat becomes of\b",
    re.IGNORECASE,
)

QUOTED: Final = re.compile(r"``[^`]*``")
DIALECT_IN_CODE: Final = re.compile(
    r"^(?:what|who|whom|whose)\b|; (?:what|who|whom|whose)\b"  # a clause without a head
    r"|\b(?:nobody|somebody|anybody)\b|\b(?:we|ours?|ourselves|he|his|him)\b"  # no actor, or the wrong one
    r"|\bby way of\b|\bnot looked at\b|\b(?:earlier|another|new|present) (?:life|lives)\b",
    re.IGNORECASE,
)
PLAIN_FOLDERS: Final = ("src/starlingmq", "bench", "compiling", "examples", "tests")


def dialect(prose: str) -> list[str]:
    return DIALECT.findall(NO_PROSE.sub(" ", prose))


def dialect_in_code(prose: str) -> list[str]:
    plain = QUOTED.sub(" ", prose)
    return DIALECT.findall(plain) + DIALECT_IN_CODE.findall(plain)


def docstrings_of(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and text of each docstring, of attributes too. Expressions, most of the nodes, have none in them."""
    blocks: list[ast.AST] = [tree]
    for block in blocks:
        for field in ("body", "orelse", "finalbody", "handlers", "cases"):
            below = getattr(block, field, ())
            blocks += below if isinstance(below, list) else ()
        if isinstance(block, ast.Expr) and isinstance(block.value, ast.Constant) and isinstance(block.value.value, str):
            yield block.lineno, block.value.value


def comments_of(source: str) -> Iterator[tuple[int, str]]:
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string.removeprefix("#").lstrip()


def may_have_dialect(source: str) -> bool:
    """Behind any #, in a comment or in a string: to read the tokens of all files takes ten seconds."""
    behind = (part for line in source.splitlines() if "#" in line for part in tails(line))
    return any(dialect_in_code(tail) for tail in behind)


def tails(line: str) -> Iterator[str]:
    while line:
        line = line.partition("#")[2]
        yield line.lstrip()


def test_pages_have_no_dialect() -> None:
    pages = [path for path in PAGES if path.name not in OWN_PAGES]
    found = {path.name: words for path in pages if (words := dialect(path.read_text(encoding="utf-8")))}
    assert found == {}, "see docs/GLOSSARY.md for the terms"


def plain_files() -> list[Path]:
    files = (path for folder in PLAIN_FOLDERS for path in sorted((ROOT / folder).rglob("*.py")))
    return [path for path in files if not path.stem.endswith(GENERATED) and "node_modules" not in path.parts]


def test_docstrings_and_comments_have_no_dialect() -> None:
    found = []
    for path in plain_files():
        source = path.read_text(encoding="utf-8")
        comments = comments_of(source) if may_have_dialect(source) else ()
        for line, prose in (*docstrings_of(parsed(path)), *comments):
            if words := dialect_in_code(prose):
                found.append(f"{path.relative_to(ROOT)}:{line}: {words}")
    assert found == [], "name the actor, and use the terms of docs/GLOSSARY.md"


def test_dialect_is_found_in_docstrings_and_comments() -> None:
    for prose in ("Who has it.", "We ask.", "the node; what it has", "Nobody waits.", "facts of an earlier life"):
        assert dialect_in_code(prose), prose
    source = '"""A docstring."""\nx = 1  # a comment\n"""Of x."""\ny = "no prose"\n'
    assert list(docstrings_of(ast.parse(source))) == [(1, "A docstring."), (3, "Of x.")]
    assert list(comments_of(source)) == [(2, "a comment")] and not may_have_dialect(source)
    assert may_have_dialect('x = "#"  # nobody waits') and may_have_dialect("x = 1  #  We ask")
    assert dialect_in_code("The node that the client connects to, whose key is ``we``.") == []


def test_dialect_is_found_in_prose_only() -> None:
    assert dialect("A node that can not be reached begins anew.") == ["can not", "anew"]
    assert dialect("It says `... can not be synced`.\n\n```text\nbegins anew\n```\n") == []
