"""Tests and messages that pages name are there."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from starlingmq.admin import remedies
from starlingmq.admin.metric_values import FAMILIES
from starlingmq.admin.remedies import CLOSED, DROPPED
from starlingmq.config.bridges_section import BridgeConfig
from starlingmq.config.links_section import LinkConfig
from starlingmq.config.settings import Config, ListenerConfig
from starlingmq.config.streams_section import StreamConfig
from starlingmq.config.tree_builder import settings
from starlingmq.core.connect import turned_away
from starlingmq.core.connect.connecting import LOGIN_WORDS
from starlingmq.storage.storage_health import ADVICE
from starlingmq.wire.reasons import Reason
from tests import boundaries
from tests.docs.blocks import PAGES, ROOT
from tests.source_tree import parsed, walk

NAMED = re.compile(r"`(tests/[\w/.]+)(?:::(\w+))?`")


@cache
def functions(path: Path) -> set[str]:
    return {node.name for node in walk(parsed(path)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def test_every_test_that_is_named_exists() -> None:
    named = [(page.name, *found) for page in PAGES for found in NAMED.findall(page.read_text(encoding="utf-8"))]
    missing = [
        f"{page}: {file}::{function}"
        for page, file, function in named
        if not (ROOT / file).exists() or (function and function not in functions(ROOT / file))
    ]
    assert missing == []


def test_pages_name_tests_and_settings() -> None:
    """Otherwise the patterns by which the tests of each page find them are out of date."""
    whole = "".join(path.read_text(encoding="utf-8") for path in PAGES)
    assert len(NAMED.findall(whole)) > 100
    assert len([path for path in SETTING.findall(whole) if path in SETTINGS]) > 200


@pytest.mark.parametrize("name", ["GUARANTEES.md", "HAZARDS.md"])
def test_every_row_names_what_holds_it(name: str) -> None:
    rows = [line for line in (ROOT / "docs" / name).read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    rows = [row for row in rows if not row.endswith((" held by |", " where it happens |"))]
    assert len(rows) > 20
    named = {row: NAMED.findall(row.rpartition(" | ")[2]) for row in rows}
    assert [row for row, tests in named.items() if not tests or not all(function for _, function in tests)] == []


def test_every_boundary_of_the_threat_model_names_what_holds_it() -> None:
    assert len(boundaries.rows()) > 15
    assert [row for row in boundaries.rows() if row.count(" | ") != 2 or not boundaries.NAMED.search(row)] == []


# The playbook

PLAYBOOK = (ROOT / "docs/PLAYBOOK.md").read_text(encoding="utf-8")
VARIES = re.compile(r"%(?:r|s|d|\.\df|\.0f)")


def texts(path: Path) -> list[str]:
    """The text in the strings of a module; a zero byte stands for each variable part."""
    found = []
    for node in walk(parsed(path)):
        if isinstance(node, ast.JoinedStr):
            parts = [str(part.value) if isinstance(part, ast.Constant) else "\0" for part in node.values]
            found.append("".join(parts))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.append(VARIES.sub("\0", node.value))
    return found


def quoted(heading: str) -> list[str]:
    """The quoted text in the first column of the table below a heading."""
    table = PLAYBOOK.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    rows = [line for line in table.splitlines() if line.startswith("| ")][1:]
    return [text for row in rows for text in re.findall(r"`([^`]+)`", row.split(" | ")[0])]


MESSAGES = [
    text
    for heading in re.findall(r"^## (.*)$", PLAYBOOK, re.MULTILINE)[:-2]
    for text in quoted(heading)
    if " " in text and not text.startswith(("starlingmq ", "ctl ", "apt "))
]


@cache
def said() -> str:
    source = ROOT / "src/starlingmq"
    return "\n".join(text for path in sorted(source.rglob("*.py")) for text in texts(path)).replace("\0", "...")


def test_each_message_of_the_playbook_is_in_the_sources() -> None:
    """``not serving yet: `` and what comes behind it are two texts; so are others that are put together."""
    split = [piece for message in MESSAGES for piece in re.split(r"\.\.\.|(?<=not serving yet): ", message)]
    missing = [piece for piece in split if piece.strip() and piece.strip(" ;,()") not in said()]
    assert missing == []


def test_the_playbook_has_enough_messages() -> None:
    assert len(MESSAGES) >= 20


GIVE_UP = ("drop", "_drop", "give_up")


def test_each_reason_for_which_messages_are_given_up_is_explained() -> None:
    """All that the sources know, and no other."""
    given, known = set(), set()
    pure = [path for part in ("core", "cluster") for path in (ROOT / "src/starlingmq" / part).rglob("*.py")]
    for path in pure:
        for node in walk(parsed(path)):
            if isinstance(node, ast.Constant):
                known.add(node.value)
            if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in GIVE_UP:
                constants = [
                    part.value for argument in node.args for part in walk(argument) if isinstance(part, ast.Constant)
                ]
                given |= {one for one in constants if isinstance(one, str) and re.fullmatch(r"[a-z_0-9]{4,}", one)}
    explained = set(quoted("Dropped messages"))
    assert len(given) > 10, GIVE_UP
    assert given - explained == set()
    assert explained - known == set()


SERVER = ("core", "cluster", "net", "auth", "admin", "wire")
WORD_AT = {
    "notice": 0,
    "refused": 0,
    "Notice": 0,
    "HandshakeError": 0,
    "note": 0,
    "fail": 3,
    "not_claimed": 3,
    "ConnectVerdict": 3,
}
"""The argument with a reason of a closed connection, by the name of what is called."""


def reasons_of(call: ast.Call) -> Iterator[ast.expr]:
    name = ast.unparse(call.func).rpartition(".")[2]
    yield from (keyword.value for keyword in call.keywords if keyword.arg == "word")
    if name in WORD_AT and len(call.args) > WORD_AT[name]:
        yield call.args[WORD_AT[name]]
    if name == "refuse":  # of a listener, or the response to a request for a WebSocket
        yield from call.args[:2]


def test_each_reason_for_which_connections_are_closed_is_explained() -> None:
    """All that the sources know, and no other: reason codes of MQTT for servers, and words of this broker."""
    given: set[str] = {*turned_away.WORDS.values(), *LOGIN_WORDS.values(), "malformed_packet"}
    trees = [parsed(path) for part in SERVER for path in (ROOT / "src/starlingmq" / part).rglob("*.py")]
    constants: dict[str, set[str]] = {}
    for line in (line for tree in trees for line in tree.body):
        if (
            isinstance(line, ast.AnnAssign)
            and isinstance(line.value, ast.Constant)
            and isinstance(line.value.value, str)
        ):
            constants.setdefault(ast.unparse(line.target), set()).add(line.value.value)
    for node in (node for tree in trees for node in walk(tree)):
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "Reason" and node.attr in Reason.__members__:
            given |= {node.attr.lower()} if Reason[node.attr] >= 0x80 else set()
        elif isinstance(node, ast.FunctionDef) and node.name == "_no_room":
            pairs = [
                one.value for one in walk(node) if isinstance(one, ast.Return) and isinstance(one.value, ast.Tuple)
            ]
            given |= {str(ast.literal_eval(pair.elts[0])) for pair in pairs}
        elif isinstance(node, ast.Call):
            for reason in reasons_of(node):
                if isinstance(reason, ast.Constant) and isinstance(reason.value, str):
                    given.add(reason.value)
                elif isinstance(reason, ast.Name):
                    given |= constants.get(reason.id, set())
    given = {one for one in given if re.fullmatch(r"[a-z_]{4,}", one)}
    assert len(given) > 50
    explained = set(quoted("Closed connections"))
    assert given - explained == set()
    assert explained - given == set()
    assert given >= CLOSED.keys()


def headings(page: str) -> set[str]:
    """The anchors of the headings of a page."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    return {
        re.sub(r"[^\w-]", "", title.lower().replace(" ", "-"))
        for title in re.findall(r"^##+ (.*)$", text, re.MULTILINE)
    }


def test_each_alarm_has_a_remedy_and_a_page_that_explains_it() -> None:
    calls = [
        node
        for name in ("alarm_conditions", "link_conditions")
        for node in walk(parsed(ROOT / f"src/starlingmq/admin/{name}.py"))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "Condition"
    ]
    assert len(calls) >= 14 and all(len(call.args) == 5 and ast.unparse(call.args[4]) != "''" for call in calls)
    kinds = {call.args[0].value for call in calls if isinstance(call.args[0], ast.Constant)}
    assert kinds | {"storage", "copies"} == remedies.PAGES.keys()
    assert all(advice or state == "ok" for state, advice in ADVICE.items())
    for page in remedies.PAGES.values():
        name, _, anchor = page.partition("#")
        assert anchor in headings(name.replace(".html", ".md")), page


def test_what_is_locked_by_itself_has_its_reason_among_the_dependencies() -> None:
    lines = re.findall(
        r"^(?:echo|printf '%s\\n') (.+) \| lock", (ROOT / "scripts/lock").read_text("utf-8"), re.MULTILINE
    )
    named = {name for line in lines for name in line.split()}
    page = (ROOT / "docs/DEPENDENCIES.md").read_text("utf-8")
    assert "pipx" in named and {name for name in named if f"[{name}]" not in page} == set()


@pytest.mark.parametrize(("heading", "known"), [("Dropped messages", DROPPED), ("Closed connections", CLOSED)])
def test_remedies_are_those_of_the_playbook(heading: str, known: dict[str, str]) -> None:
    table = PLAYBOOK.partition(f"\n## {heading}\n")[2].partition("\nEvents after which")[0].partition("\n## ")[0]
    rows = [line.removesuffix(" |").split(" | ") for line in table.splitlines() if line.startswith("| `")]
    actions = {reason: row[-1].replace("`", "") for row in rows for reason in re.findall(r"`(\w+)`", row[0])}
    assert heading == "Closed connections" or actions.keys() == known.keys()
    assert {reason for reason, remedy in known.items() if not actions[reason].startswith(remedy)} == set()
    assert [remedy for remedy in known.values() if "docs/" in remedy or "\n" in remedy] == []


def test_each_metric_that_is_named_exists() -> None:
    names = set(re.findall(r"`(starlingmq_[a-z_]+)`", PLAYBOOK))
    assert len(names) > 10
    assert names - {f"starlingmq_{name}" for name in FAMILIES} == set()


# Settings

SETTINGS = {setting.path for setting in settings(Config)}
SETTING = re.compile(r"`([a-z_]+(?:\[\])?(?:\.[a-z_]+(?:\[\])?)+)`")
SECTIONS = {path.partition(".")[0] for path in SETTINGS}
NO_SETTINGS = {"mqtt.content_type", "mqtt.response_topic", "mqtt.correlation_data", "mqtt.payload_format"}  # of rows
IN_LISTS = {
    "listeners": set(ListenerConfig.__struct_fields__),
    "streams.define": set(StreamConfig.__struct_fields__),
    "bridges": set(BridgeConfig.__struct_fields__),
    "links": set(LinkConfig.__struct_fields__),
}


def unknown_settings(page: Path) -> Iterator[str]:
    text = page.read_text(encoding="utf-8")
    if "MIGRATE" in page.name:
        text = re.sub(r"^\| `[^|]*\|", "|", text, flags=re.MULTILINE)  # the left columns have names of others
    for path in SETTING.findall(text):
        if path.partition(".")[0].removesuffix("[]") not in SECTIONS or path.endswith((".py", ".yaml", ".md", ".json")):
            continue
        of_list, inside, key = path.partition("[].")
        known = key.partition(".")[0] in IN_LISTS.get(of_list, ()) if inside else path in SETTINGS | NO_SETTINGS
        if not known:
            yield f"{page.name}: {path}"


def test_every_setting_that_is_named_exists() -> None:
    """``mqtt.max_inflight``, ``listeners[].advertise``."""
    assert [found for page in PAGES for found in unknown_settings(page)] == []
