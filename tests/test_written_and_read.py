"""Files that this program writes and reads again: what the writer accepts reads back the same, or it is refused."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
import yaml
from argon2 import PasswordHasher
from hypothesis import example, given, settings
from hypothesis import strategies as st

from starlingmq.admin.operator_bans import BanActions, BanEntry
from starlingmq.admin.stream_requests import NewStream
from starlingmq.auth import password_file
from starlingmq.auth.automatic_bans import KINDS, AutomaticBans
from starlingmq.auth.password_file import PasswordFile, read_passwords
from starlingmq.auth.token_file import digest_of, read_tokens
from starlingmq.cli.announce import _read, announced
from starlingmq.config.auth_section import FailuresConfig, FlappingConfig
from starlingmq.config.section_types import ConfigError
from starlingmq.config.tree_builder import read_yaml
from starlingmq.pipeline.inference import Inference, as_yaml
from starlingmq.storage.data_dir import layout_text, read_layout

ODD = st.sampled_from(" \t\r\n\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029\ufeff\xa0\u3000\x00:#$\\\"'%-,{}[]&*!|>?@`\ud800")
TEXT = st.text(st.one_of(ODD, st.characters(), st.sampled_from("ab0")), max_size=20)


@settings(max_examples=50, deadline=None)
@given(st.lists(TEXT, max_size=4), TEXT)
@example([" boss"], "secret")
@example(["\u2028boss"], "secret")
@example(["boss\u2028eve", "boss"], "secret")
@example([" eve", "eve"], "secret")
@example(["\ufeffann", "bob\r"], "secret")
@example(["ann"], "\xad")
@example(["ann"], "\x07")
def test_a_password_file(names: list[str], password: str) -> None:
    cheap = patch.multiple(password_file, HASHER=PasswordHasher(1, 8, 1), SCRAM_ITERATIONS=4096)
    with TemporaryDirectory() as directory, cheap:
        path = Path(directory) / "passwords"
        users = PasswordFile()
        for name in names:
            try:
                users.set(name, password)
            except ConfigError:
                assert name not in users.names()
        users.write(path)
        assert read_passwords(path) == users


@pytest.mark.parametrize("line", [" boss:{}", "\u2028boss:{}", "\tboss:{}"])
def test_a_password_file_of_an_earlier_version_does_not_make_another_user(tmp_path: Path, line: str) -> None:
    users = PasswordFile()
    users.set("eve", "secret")
    path = tmp_path / "passwords"
    path.write_text(line.format(users.hashes["eve"]) + "\n")
    with pytest.raises(ConfigError, match=":1: remove the white space before the user name"):
        read_passwords(path)


def test_a_password_file_may_have_comments_and_line_ends_of_windows(tmp_path: Path) -> None:
    users = PasswordFile()
    users.set("eve", "secret")
    path = tmp_path / "passwords"
    path.write_bytes(f"  # users\r\n\r\neve:{users.hashes['eve']} \r\n".encode())
    assert read_passwords(path).hashes == users.hashes


@given(st.lists(st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=16), min_size=1))
@example(["a" * 16 + "\x1c" + "b" * 16])
@example(["a" * 16 + "\r" + "b" * 16])
def test_a_file_of_tokens(tokens: list[str]) -> None:
    with TemporaryDirectory() as directory:
        path = Path(directory) / "tokens"
        path.write_bytes("\n".join(tokens).encode())
        plain = [token for token in tokens if not token.startswith("#")]
        if plain and all(token.isprintable() for token in plain):
            assert read_tokens(str(path), "s") == [digest_of(token.encode()) for token in plain]
        else:
            with pytest.raises(ConfigError):
                read_tokens(str(path), "s")


UNICODE = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
ENTRIES = st.builds(
    BanEntry,
    kind=st.sampled_from(KINDS),
    name=st.one_of(UNICODE, st.ip_addresses().map(str)),
    until=st.floats(1001.0, 1e9),
    reason=UNICODE,
    disconnect=st.booleans(),
    at=st.floats(1000.0, 1e9),
)


@settings(max_examples=50, deadline=None)
@given(st.lists(ENTRIES, max_size=5))
def test_the_bans_of_operators(entries: list[BanEntry]) -> None:
    driver: Any = SimpleNamespace(clock=lambda: 1000.0, clients=[], request_turn=lambda: None)

    def actions(directory: Path) -> tuple[BanActions, AutomaticBans]:
        bans = AutomaticBans(FailuresConfig(), FlappingConfig())
        return BanActions(driver, bans, bans.ban, directory), bans

    with TemporaryDirectory() as directory:
        before, in_force = actions(Path(directory))
        asyncio.run(before.merge(entries))
        after, again = actions(Path(directory))
        assert after.all() == before.all()
        assert {(ban.kind, ban.name) for ban in again.all(0.0)} == {(ban.kind, ban.name) for ban in in_force.all(0.0)}


@given(TEXT, st.binary(min_size=1, max_size=40).filter(lambda name: not {0, ord("/")} & set(name)))
@example("n1", b"\xff" * 4000)
def test_the_announcement_of_a_broker(name: str, directory: bytes) -> None:
    with TemporaryDirectory() as runtime, patch.dict(os.environ, {"XDG_RUNTIME_DIR": runtime, "RUNTIME_DIRECTORY": ""}):
        data_dir = "/" + os.fsdecode(directory)
        with announced(name, data_dir):
            path = Path(runtime) / "starlingmq" / f"{os.getpid()}.json"
            found = _read(path)
        assert found is not None and (found.name, found.directory) == (name, Path(data_dir).absolute())


VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), TEXT),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXT, inner, max_size=3)),
    max_leaves=6,
)


@settings(deadline=None)
@given(st.dictionaries(TEXT, VALUES, max_size=3))
def test_settings_as_a_file(tree: dict[str, Any]) -> None:
    """As ``starlingmq cluster`` writes the settings of its nodes, and ``ctl config`` prints those in force."""
    with TemporaryDirectory() as directory:
        path = Path(directory) / "settings.yaml"
        path.write_text(yaml.safe_dump(tree, sort_keys=False), encoding="utf-8")
        assert read_yaml(path) == tree


@settings(deadline=None)
@given(st.dictionaries(TEXT, VALUES, max_size=3), st.lists(TEXT, max_size=3))
@example({"a": "b"}, ["topics such as a\x07b"])
@example({"a": "\x85\ufeff"}, ["1\n2: 3"])
def test_the_part_of_a_pipeline_file_that_infer_prints(decode: dict[str, Any], notes: list[str]) -> None:
    with TemporaryDirectory() as directory:
        path = Path(directory) / "pipeline.yaml"
        path.write_text(as_yaml(Inference(decode=decode, notes=notes, fits=1, samples=1)), encoding="utf-8")
        assert read_yaml(path) == {"decode": decode}


@given(st.lists(TEXT.filter(lambda topic: topic and "\n" not in topic), min_size=1))
@example(["a\u2028b"])
def test_the_topics_of_a_stream_on_their_way_to_all_nodes(topics: list[str]) -> None:
    assert NewStream("s", "\n".join(topics)).settings()["topics"] == topics


@given(st.dictionaries(st.sampled_from(["journal", "kv"]), st.sampled_from(["segment", "rocksdb", "memory"])))
def test_the_layout_of_a_data_directory(facts: dict[str, str]) -> None:
    assert read_layout(layout_text(facts), Path("data")) == facts
