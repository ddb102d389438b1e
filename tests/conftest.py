"""Which tests ``make test`` runs interpreted, compiled or both ways, and which hold a boundary of security."""

from __future__ import annotations

import gc
import logging
import os
import re
import signal
from collections.abc import Generator, Iterator
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, Final, NamedTuple

import hypothesis
import msgspec.inspect
import pytest
from _pytest.mark.expression import Expression

import starlingmq
from compiling.modules import PACKAGE, ROOT, compiled_parts
from tests import durations, source_tree
from tests.boundaries import held_by
from tests.few import check_long
from tests.patience import TimeOuts

# How long an example takes depends on what else the machine does.
hypothesis.settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("any machine")

# The free room of this machine's disk decides about no test: commands that tests start raise no alarm about it.
os.environ["STARLINGMQ_ALARMS__DISK_FREE"] = "0"

BOTH_WAYS: Final = ("core", "wire")
"""A compiler may change these most: their tests are run interpreted and compiled. Other tests of compiled code are run
compiled only, as users run it; ``make test-pure`` runs them interpreted as well."""

WHOLE: Final = ("bulk", "spark")
"""Tests of parts that are not compiled, which use whole brokers: running them compiled is enough."""

NOT_COMPILED: Final = (
    "docs",
    "examples",
    "security",
    "sim/test_etcd_model.py",
    "storage/test_data_dir.py",
    "storage/test_journal_faults.py",
    "storage/test_keys.py",
    "storage/test_private.py",
    "storage/test_rocks_crash.py",
    "storage/test_rocks_faults.py",
    "test_cli_basics.py",
    "test_compiling.py",
    "test_config.py",
    "test_config_secrets.py",
    "test_deploy.py",
    "test_deploy_containers.py",
    "test_durations.py",
    "test_few.py",
    "test_flaky.py",
    "test_project_rules.py",
    "test_pytest_plugin.py",
    "test_structure.py",
    "test_tests_can_fail.py",
)
"""Tests that read sources, or of code that is never compiled: running them interpreted is enough."""

LIVED: Final = (
    "core/test_filter_tree.py",
    "core/test_long_work.py",
    "core/test_qos.py",
    "core/test_retained.py",
    "core/test_sessions.py",
    "core/test_sharded_dict.py",
)
"""These take thousands of drawn steps beside a twin: minutes interpreted, much less compiled."""

MARKED_BY: Final = {
    "slow": ("slow",),
    "compiled_only": ("compiled_only",),
    "interpreted_only": ("interpreted_only", "each_mistake"),
}
"""Tests have such a mark only if their file contains one of these words."""

LEFT_OUT: Final[pytest.StashKey[list[Path]]] = pytest.StashKey()
"""Files that were not loaded."""


@pytest.fixture(scope="session", autouse=True)
def interrupts_are_heard() -> None:
    """A shell starts what runs in its background with SIGINT ignored, and commands of tests would inherit that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def own_announcements(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Brokers of tests announce themselves where no other broker of this machine does (cli/announce.py)."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", str(tmp_path_factory.mktemp("runtime")))
        yield


@pytest.fixture(scope="session", autouse=True)
def types_of_settings_are_read_once() -> Iterator[None]:
    """A process reads them at its start, which takes longer than the rest of a configuration; tests have hundreds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(msgspec.inspect, "type_info", cache(msgspec.inspect.type_info))
        yield


@pytest.fixture(scope="session", autouse=True)
def calls_of_closed_loops_leave_no_line() -> Iterator[None]:
    """gRPC has one queue for all event loops of a process. If a call ends when the loop of its test is closed, the loop
    of a later test takes its event from the queue, and asyncio logs the error among the lines of that test."""
    logger = logging.getLogger("asyncio")
    logger.addFilter(is_of_this_loop)
    yield
    logger.removeFilter(is_of_this_loop)


def is_of_this_loop(record: logging.LogRecord) -> bool:
    error = record.exc_info[1] if record.exc_info else None
    late = isinstance(error, RuntimeError) and str(error) == "Event loop is closed"
    return not (late and "PollerCompletionQueue._handle_events" in record.getMessage())


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--record-durations", action="store_true", help="write what each file took to tests/durations.tsv")
    parser.addoption("--quickest", type=float, metavar="SECONDS", help="only the files that took the least time")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[LEFT_OUT] = []
    config.pluginmanager.register(TimeOuts())
    if config.getoption("--record-durations"):
        config.pluginmanager.register(durations.Recorder())


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """All that is collected stays to the end: the garbage collector need not search it, neither now nor later."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """In a new clone pytest first rewrites the assertions of each file: 13 CPU seconds, and each process for itself, if
    all are at the same file at the same time. Every other process goes through the files backwards, until it meets
    what another one has left in ``__pycache__``. The order of the tests is that of ``durations.sort_longest_first``.
    """
    report = yield
    if isinstance(collector, pytest.Directory) and report.result and collects_backwards():
        report.result.reverse()
    return report


def collects_backwards() -> bool:
    """pytest-xdist numbers its processes: gw0, gw1, and so on."""
    return os.environ.get("PYTEST_XDIST_WORKER", "gw0")[-1] in "13579"


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Files of which ``-m`` or ``--quickest`` selects no test are not loaded: more than half of them, in the
    interpreted half of ``make test``. A file that is named is loaded."""
    if collection_path.suffix != ".py" or any(Path(argument.partition("::")[0]).is_file() for argument in config.args):
        return None
    file = str(collection_path.relative_to(Path(__file__).parent))
    seconds = config.getoption("--quickest")
    is_slow = seconds is not None and f"tests/{file}" in durations.slower_than(seconds)
    if not is_slow and may_select(config.getoption("-m"), way_of(file), may_be_marked(collection_path)):
        return None
    config.stash[LEFT_OUT].append(collection_path)
    return True


@cache
def may_be_marked(path: Path) -> frozenset[str]:
    """Which of the marks in ``MARKED_BY`` tests of this file may have; ``pytest_collection_modifyitems`` checks it."""
    text = path.read_text()
    return frozenset(mark for mark, words in MARKED_BY.items() if any(word in text for word in words))


@cache
def may_select(expression: str, way: Way, marks: frozenset[str]) -> bool:
    """Whether a test of a file of that way, with some of these marks, may be selected. Any test may have or lack a mark
    that is not in ``MARKED_BY``."""
    if not expression or "=" in expression:
        return True
    try:
        selects = Expression.compile(expression).evaluate
    except SyntaxError:  # pytest says so
        return True
    names = set(re.findall(r"\w+", expression)) - {"and", "or", "not", "hot", "compiled_suffices"}
    open_ones = sorted((names - MARKED_BY.keys()) | marks)
    for some in product((False, True), repeat=len(open_ones)):
        has = dict(zip(open_ones, some, strict=True))
        has["hot"] = way.hot
        has["compiled_suffices"] = way.hot and not way.both and not has.get("interpreted_only", False)
        if selects(lambda name, /, has=has, **arguments: has.get(name, False)):
            return True
    return False


def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    here = durations.lot(durations.file_of(item))
    if nextitem is None or durations.lot(durations.file_of(nextitem)) != here:
        source_tree.let_go()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Replaces the scheduler of ``--dist loadfile``. None: that of pytest-xdist."""
    if config.getvalue("dist") != "loadfile":
        return None
    from tests.scheduling import ByFile  # not where pytest-xdist is not installed

    return ByFile(config, log)


class Way(NamedTuple):
    hot: bool  # about what can be compiled: run compiled
    both: bool  # and interpreted as well


@cache
def way_of(file: str) -> Way:
    """``file``: below tests."""
    places = {file, file.partition("/")[0]}
    interpreted_parts = {path.name for path in (ROOT / PACKAGE).iterdir() if path.is_dir()} - compiled_parts()
    hot = places.isdisjoint(interpreted_parts.union(NOT_COMPILED).difference(WHOLE))
    return Way(hot, not places.isdisjoint(BOTH_WAYS) and places.isdisjoint(LIVED))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not any("::" in argument for argument in config.args):  # single tests: others of their file are not collected
        left_out = config.stash[LEFT_OUT]
        check_long(items, ROOT, left_out)
    here = Path(__file__).parent
    assert all((here / name).exists() for name in (*BOTH_WAYS, *WHOLE, *LIVED, *NOT_COMPILED)), "a test has moved"
    boundaries = held_by()
    interpreted = os.environ.get("STARLINGMQ_PURE", "") not in ("", "0")
    for item in items:
        marks = {mark.name for mark in item.iter_markers()}
        if interpreted and "compiled_only" in marks:
            item.add_marker(pytest.mark.skip(reason="STARLINGMQ_PURE is set: nothing is compiled"))
        patches = item.get_closest_marker("interpreted_only") if "interpreted_only" in marks else None
        if patches is not None and starlingmq.compiled():
            item.add_marker(pytest.mark.skip(reason=patches.args[0]))
        file = item.nodeid.partition("::")[0]
        if not marks.intersection(MARKED_BY) <= may_be_marked(ROOT / file):
            raise pytest.UsageError(f"{item.nodeid} has a mark of which MARKED_BY finds no word in its file")
        way = way_of(file.removeprefix("tests/"))
        if way.hot:
            item.add_marker(pytest.mark.hot)
        name = getattr(item, "originalname", item.name)
        if file.startswith("tests/security/") or not boundaries.isdisjoint([(file, ""), (file, name)]):
            item.add_marker(pytest.mark.security)
        if way.hot and not way.both and patches is None:
            item.add_marker(pytest.mark.compiled_suffices)
    durations.sort_longest_first(items)
