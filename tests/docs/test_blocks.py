"""Every block of commands, Python or settings is run as the page shows it, or says why it is not run."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from typer.main import get_command

from starlingmq.auth.acl import read_acl
from starlingmq.cli.app import COMMANDS, build_app
from starlingmq.config.settings import from_tree
from starlingmq.pipeline.config import read_pipeline
from tests.docs.blocks import ELSEWHERE, PAGES, ROOT, RUN_BY_TESTS, Block, all_blocks, stories
from tests.docs.play import matches

SLOW: Final = {("README.md", "broker"), ("docs/OPERATING.md", "backup"), ("docs/SECURITY.md", "doors")}
"""Stories of more than two seconds ..."""
LONG: Final = {
    ("README.md", "cluster"),
    ("README.md", "spark"),
    ("docs/TOUR.md", "broker"),
    ("docs/TOUR.md", "cluster"),
    ("docs/TOUR.md", "spark"),
    ("docs/PYTHON.md", "fixture"),
    ("docs/START-DATA.md", "data"),
    ("docs/START-DEVICES.md", "device"),
    ("docs/START-DEVICES.md", "certificates"),
    ("docs/START-DEVICES.md", "assistant"),
    ("docs/START-OPERATORS.md", "operator"),
    ("docs/START-BACKEND.md", "service"),
    ("docs/OPERATING.md", "bench"),
}
"""... and those that make test-all alone runs: they use the same commands in other words, clusters or Spark."""
KNOWN: Final = ("", "run", "printed", "file", "not run", "rules", "pipeline")


def of_story(story: tuple[str, str]) -> object:
    marks = [pytest.mark.slow] if story in SLOW else [pytest.mark.long, pytest.mark.slow] if story in LONG else []
    return pytest.param(*story, marks=[*marks, pytest.mark.timeout(400)], id=f"{Path(story[0]).name}-{story[1]}")


@cache
def alone() -> list[str]:
    """The command prefix for a network namespace in which every port is free; empty where that is forbidden."""
    flags = "-n" if os.geteuid() == 0 else "-rn"
    try:
        allowed = subprocess.run(["unshare", flags, "true"], capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        allowed = False
    return ["unshare", flags] if allowed else []


@pytest.mark.parametrize(("page", "story"), [of_story(story) for story in stories()])
def test_a_story_comes_out_as_the_page_shows_it(page: str, story: str) -> None:
    if not alone():
        pytest.skip("no network of its own: the ports on the page may be taken")
    done = subprocess.run(
        [*alone(), sys.executable, "-m", "tests.docs.play", page, story],
        cwd=ROOT,
        env={**os.environ, "STORY_ALONE": "1", "STORY_SECONDS": "180" if (page, story) in LONG else "60"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_block_is_run_or_says_why_not() -> None:
    silent = [
        block.place for block in all_blocks() if block.kind in RUN_BY_TESTS and not block.mark and block.kind != "yaml"
    ]
    assert silent == [], "put a comment above them: see tests/docs/blocks.py"
    strange = [block.place for block in all_blocks() if block.what not in KNOWN and block.page not in ELSEWHERE]
    assert strange == []


def test_a_reason_not_to_run_is_a_reason() -> None:
    reasons = [block.mark.partition(":")[2].strip() for block in all_blocks() if block.what == "not run"]
    assert reasons
    assert [reason for reason in reasons if len(reason.split()) < 3] == []
    named = [path for reason in reasons for path in re.findall(r"tests/[\w/.]*\w", reason)]
    assert named and [path for path in named if not (ROOT / path).exists()] == []


def yaml_blocks(*kinds: str) -> list[Block]:
    found = [
        block
        for block in all_blocks()
        if block.kind == "yaml" and block.what in kinds and block.page not in ELSEWHERE
        if not block.mark.endswith("acl.yaml")  # which the story reads
    ]
    assert found
    return found


def refused(blocks: list[Block], read: Callable[[str], object]) -> list[str]:
    """Place of each block that cannot be read, and why."""
    found = []
    for block in blocks:
        try:
            read(block.text)
        except Exception as error:
            found.append(f"{block.place}: {error!r}")
    return found


def test_settings_can_be_read() -> None:
    assert refused(yaml_blocks("", "file"), lambda text: from_tree(yaml.safe_load(text))) == []


def test_rules_can_be_read(tmp_path: Path) -> None:
    def read(text: str) -> None:
        (tmp_path / "acl.yaml").write_text(text, encoding="utf-8")
        read_acl(str(tmp_path / "acl.yaml"))

    assert refused(yaml_blocks("rules"), read) == []


def test_pipelines_can_be_read(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("sixteen bytes or more", encoding="utf-8")

    def read(text: str) -> None:
        text = text.replace("/etc/starlingmq/token", str(tmp_path / "token"))
        (tmp_path / "pipeline.yaml").write_text(text, encoding="utf-8")
        read_pipeline(tmp_path / "pipeline.yaml")

    assert refused(yaml_blocks("pipeline"), read) == []


def test_python_is_python() -> None:
    """Also of those that are not run."""
    assert refused([block for block in all_blocks() if block.kind == "python"], ast.parse) == []


def test_commands_exist() -> None:
    """Also in blocks that are not run, and in the text: ``starlingmq ctl ban`` and ``make site`` are there."""
    whole: Any = get_command(build_app(list(COMMANDS)))
    makefiles = "".join((ROOT / name).read_text(encoding="utf-8") for name in ("Makefile", "packaging.mk"))
    targets = set(re.findall(r"^([a-z-]+):", makefiles, re.MULTILINE))
    for workflow in (ROOT / ".github/workflows").iterdir():
        asked_of_make = re.findall(
            r"(?:run: |env .*|- )make ([a-z-]+(?: [a-z-]+)*)", workflow.read_text(encoding="utf-8")
        )
        assert asked_of_make and targets.issuperset(" ".join(asked_of_make).split()), workflow.name
    asked = 0
    for path in PAGES:
        text = path.read_text(encoding="utf-8")
        for words in re.findall(r"(?:^\$ |[`|;&(] ?)starlingmq ((?:[a-z-]+ ?)+)", text, re.MULTILINE):
            group = whole
            for word in words.split():
                if not hasattr(group, "commands"):
                    break
                assert word in group.commands, f"{path.name}: starlingmq {words}"
                group = group.commands[word]
            asked += 1
        for word in re.findall(r"(?:^\$ |`)make ([a-z-]+)", text, re.MULTILINE):
            assert word in targets, f"{path.name}: make {word}"
            asked += 1
    assert asked > 50


@pytest.mark.parametrize(
    ("shown", "said", "is_so"),
    [
        ("a\nb", "a\nb\n", True),
        ("a", "a\nb\n", False),
        ("a...c", "abbbc\n", True),
        ("...\nc", "a\nb\nc\n", True),
        ("a\n...", "a\n", True),
        ("", "", True),
        ("", "a\n", False),
    ],
)
def test_shown_output_is_the_actual_output(shown: str, said: str, is_so: bool) -> None:
    assert matches(shown, said) is is_so
