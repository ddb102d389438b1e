"""Mistakes made on purpose in copies are found by the lives with followers."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.few import few
from tests.storage.planted import copy
from tests.storage.planted_copies import BUGS, caught

KINDS = ("acknowledged before the copy", "offsets are given twice")
"""One for each end."""


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy(tmp_path_factory.mktemp("planted"))


@pytest.mark.slow
@pytest.mark.parametrize("name", few(BUGS, *KINDS))
def test_each_is_found(name: str, tree: Path) -> None:
    assert caught(tree, BUGS[name]), "no life finds it"
