"""A test that is ``long`` names one that stays in ``make test``."""

from __future__ import annotations

import pytest

from tests.few import few

pytest_plugins = "pytester"

CONFTEST = """
from tests.few import check_long

def pytest_collection_modifyitems(config, items):
    check_long(items, config.rootpath, config.rootpath.glob("left_out.*"))
"""
MODULE = """
import pytest

@pytest.mark.long{of_test_a}
@pytest.mark.parametrize("number", {numbers_of_a})
def test_a(number):
    pass

@pytest.mark.parametrize("number", {numbers_of_b})
def test_b(number):
    pass
"""
LONG = "pytest.param(2, marks=pytest.mark.long)"


@pytest.mark.parametrize(
    ("of_test_a", "numbers_of_b", "accepted"),
    [
        ('(kept="test_it.py::test_b")', "[1]", True),
        ('(kept="test_it.py::test_b")', f"[1, {LONG}]", True),
        ('(kept="test_it.py::test_b")', f"[{LONG}]", False),
        ('(kept="test_it.py::test_c")', "[1]", False),
        ('(kept="test_other.py::test_b")', "[1]", False),
        ('(kept="test_it.py")', "[1]", True),
        ('(kept="test_it.py")', f"[{LONG}]", False),
        ('(alone="a real one needs root")', "[1]", True),
        ("", "[1]", False),
    ],
)
def test_a_long_test_names_one_that_stays(
    pytester: pytest.Pytester, of_test_a: str, numbers_of_b: str, accepted: bool
) -> None:
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(test_it=MODULE.format(of_test_a=of_test_a, numbers_of_a="[1]", numbers_of_b=numbers_of_b))
    found = pytester.inline_run("--collect-only", "-q", "-p", "no:asyncio")
    assert (found.ret == pytest.ExitCode.OK) is accepted
    assert accepted or found.ret == pytest.ExitCode.USAGE_ERROR


@pytest.mark.parametrize(("kept", "accepted"), [("test_b", True), ("test_a", False)])
def test_a_long_test_in_a_file_that_is_not_loaded_names_one_that_stays(
    pytester: pytest.Pytester, kept: str, accepted: bool
) -> None:
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(test_it=MODULE.format(of_test_a='(alone="root")', numbers_of_a="[1]", numbers_of_b="[1]"))
    pytester.makefile(".txt", left_out=f'@pytest.mark.long(kept="test_it.py::{kept}")')
    found = pytester.inline_run("--collect-only", "-q", "-p", "no:asyncio")
    assert found.ret == (pytest.ExitCode.OK if accepted else pytest.ExitCode.USAGE_ERROR)


def test_parameters_that_were_to_stay_are_there() -> None:
    assert few(range(3), 1)[1] == 1
    assert [each.marks for each in few(range(3), 1) if each != 1] == [(pytest.mark.long,)] * 2
    with pytest.raises(AssertionError, match="was to stay"):
        few(range(3), 4)
