"""Mistakes made on purpose in the source of copies: a life by seed finds every one of them.

``python -m tests.storage.planted_copies`` says which seed finds each of them: what seeds draw changes with the code.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.storage.planted import Bug, copy, planted

from starlingmq.storage import checkpointer, journal_writer
from starlingmq.storage.copies import catch_up, copy_directory, copy_facts, copy_receiver, copy_source
from starlingmq.storage.streams import stream_logs

SEEDS_MAX = 400  # lives in which a mistake has to show, where the one that found it has become another one
TIMEOUT = 400.0  # seconds for those

BUGS = {
    "acknowledged before the copy": Bug(
        copy_source,
        "        if self.is_copied(self.lsn):\n            self.stored_before",
        "        if True:\n            self.stored_before",
        2,
    ),
    "the tail is not sent": Bug(
        catch_up, "operations += [frames.append(*run) for run in _read_all(source.journal, self._at)]", "pass", 3
    ),
    "the tail is sent twice": Bug(
        copy_directory,
        '            raise CopyFrameError(f"record {offset} of the journal is here already, up to {journal.next - 1}")',
        "            pass",
        29,
    ),
    "a copy begins in the middle": Bug(
        catch_up,
        "self._at, self._streams = position.journal,",
        "self._at, self._streams = max(position.journal, source.journal.next - 2),",
        3,
    ),
    "offsets are given twice": Bug(
        copy_directory, "            self._cut(ends.journal_end, ends.stream_ends)\n", "            pass\n", 12
    ),
    "a copy that missed a life is cut to the last one only": Bug(
        copy_facts,
        "later = [life for life in (*own, *lives) if life.generation > generation]",
        "later = [life for life in lives[-1:] if life.generation > generation]",
        12,
    ),
    "the key-value store is replaced before the journal is there": Bug(
        catch_up,
        "            await self._pass()\n            if position.kv != source.kv_state:\n"
        "                await self._send_store()\n",
        "            if position.kv != source.kv_state:\n                await self._send_store()\n"
        "            await self._pass()\n",
        8,
    ),
    "a turn that is cut in the middle is taken over": Bug(
        copy_directory, "            self._cut(boundary, {})\n", "            pass\n", 121
    ),
    "a group that is missing is not noticed": Bug(
        copy_receiver, "if lsn != self.stored + 1 and self.stored:", "if False:", 149
    ),
    "acknowledged before the sync": Bug(copy_receiver, "if self._syncs and", "if False and", 130),
    "two states of the key-value store have one mark": Bug(
        copy_source, "        self.kv_state = (self.facts.generation, self.kv_state[1] + 1)\n", "        pass\n", 0
    ),
    "streams are not sent": Bug(stream_logs, "if self.copies is not None and records:", "if False:", 0),
    "a stream may be read before it is copied": Bug(
        copy_source,
        "        if self.is_copied(self.lsn):\n            self.streams.show",
        "        if True:\n            self.streams.show",
        0,
    ),
    "an append that failed is never sent": Bug(
        journal_writer,
        "            self.copies.commit(offset, records)\n            if self.durability",
        "            if self.durability",
        83,
    ),
    "a checkpoint is not sent": Bug(checkpointer, "        copies.wrote(batch)\n", "", 0),
}


def run(tree: Path, first: int, seeds: int) -> str:
    """The line that says which life failed; "" if all is well."""
    words = ["tests.storage.copy_lives", "--first", str(first), "--seeds", str(seeds)]
    environment = {**os.environ, "STARLINGMQ_PURE": "1", "PYTHONPATH": f"{tree / 'src'}{os.pathsep}{tree}"}
    done = subprocess.run(
        [sys.executable, "-m", *words], cwd=tree, env=environment, capture_output=True, text=True, timeout=TIMEOUT
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("FAILED")]
    assert done.returncode == len(lines[:1]), done.stdout + done.stderr
    return lines[0] if lines else ""


def caught(tree: Path, bug: Bug) -> str:
    """The failure that reveals the bug: of the life that found it once, or of another one."""
    assert isinstance(bug.found_by, int)
    for first, seeds in ((bug.found_by, 1), (0, SEEDS_MAX)):
        with planted(tree, bug):
            found = run(tree, first, seeds)
        if found:
            assert not run(tree, int(found.split()[2].rstrip(";")), 1), "it fails without the mistake too"
            return found
    return ""


def main() -> int:
    names = sys.argv[1:] or list(BUGS)
    with tempfile.TemporaryDirectory() as directory:
        tree = copy(Path(directory))
        missed = 0
        for name in names:
            found = caught(tree, BUGS[name])
            missed += not found
            print(f"{name}: {found or 'MISSED'}", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
