"""Which tests are run twice by ``make test``: interpreted, and compiled."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

COLD: Final = ("api", "auth", "cli", "client", "test_cli_basics.py", "test_config.py", "test_deploy.py")
"""What these tests are about is never compiled: run interpreted, they have said what they have to say."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if item.path.relative_to(here).parts[0] not in COLD:
            item.add_marker(pytest.mark.hot)
