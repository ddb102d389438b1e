"""Runs tests again and again, on a quiet machine and on a busy one: a test that fails sometimes is a fault.

    python -m tests.flaky --times 20 [TEST ...]      (make flaky N=20 ARGS="tests/net/test_wills.py")

Without TEST: the test files that differ from ``--since``, a revision (HEAD~1: before the last commit).
The output of a run in which a test failed is kept in build/flaky. Ends with 1 if one failed.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from time import monotonic
from typing import Final

from tests.busy import Busy

ROOT: Final = Path(__file__).parent.parent
LOADS: Final = (0, 6)  # processes that compute without pause, beside the tests
FAILED: Final = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", re.M)
NO_TESTS: Final = 5  # pytest's exit code

Failures = Counter[tuple[str, int]]
"""By (test, load): in how many runs it failed. A run that failed as a whole has the name ``WHOLE_RUN``."""
WHOLE_RUN: Final = "the run as a whole"


def changed(since: str) -> list[str]:
    """Test files that differ from that revision, those not committed included. Raises CalledProcessError."""
    words = ["git", "diff", "--name-only", "--diff-filter=d", since, "--", "tests"]
    names = subprocess.run(words, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split()
    return [name for name in names if Path(name).name.startswith("test_") and name.endswith(".py")]


def failures_of(tests: list[str], times: int, kept: Path, root: Path = ROOT) -> Failures:
    """The tests that failed in ``times`` runs at each load. Prints a line for each run."""
    found: Failures = Counter()
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-rfE", "--tb=short", *tests]
    for load in LOADS:
        with Busy(load):
            for run in range(1, times + 1):
                began = monotonic()
                done = subprocess.run(words, cwd=root, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
                failed = set(FAILED.findall(done.stdout))
                if done.returncode and not failed:
                    failed = {WHOLE_RUN}
                if failed:
                    kept.mkdir(parents=True, exist_ok=True)
                    (kept / f"load-{load}-run-{run}.txt").write_text(done.stdout)
                found.update((test, load) for test in failed)
                says = f"failed: {', '.join(sorted(failed))}" if failed else "passed"
                print(f"load {load}, run {run} of {times}: {says} ({monotonic() - began:.0f} s)", flush=True)
                if done.returncode == NO_TESTS:
                    return found
    return found


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=20, help="runs at each load (20)")
    parser.add_argument("--since", default="HEAD~1", metavar="REVISION")
    parser.add_argument("tests", nargs="*", metavar="TEST")
    options = parser.parse_args(arguments)
    tests = options.tests or changed(options.since)
    if not tests:
        print(f"no test differs from {options.since}")
        return 0
    kept = ROOT / "build" / "flaky"
    failures = failures_of(tests, options.times, kept)
    for (test, load), count in sorted(failures.items()):
        print(f"{test}: {count} of {options.times} runs at load {load}")
    loads = " and ".join(map(str, LOADS))
    print(f"their output is in {kept}" if failures else f"{options.times} runs at load {loads}: none failed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
