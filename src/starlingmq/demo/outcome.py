"""Spark's results at the end: the readings in the table of positions, and the result of the delivery audit."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

import msgspec

from starlingmq.cli.pipeline_jobs import sentence, verdict
from starlingmq.demo import tally
from starlingmq.demo.stage import POSITIONS, POSITIONS_DELTA
from starlingmq.demo.told import DemoOutcome
from starlingmq.pipeline.delivery_audit import DeliveryAudit

FINDINGS_MAX: Final = 5


def positions(directory: Path) -> tuple[int, int]:
    """Return the number of rows of QoS 1 and 2 in the table, and of the distinct readings in them."""
    import pyarrow.dataset as ds  # type: ignore[import-untyped]

    delta = directory / POSITIONS_DELTA
    files: Path | list[str] = delta_files(delta) if delta.is_dir() else directory / POSITIONS
    if not files or (isinstance(files, Path) and not files.is_dir()):
        return 0, 0
    table = ds.dataset(files, partitioning="hive").to_table(columns=["id", "n"], filter=ds.field("qos") > 0)
    different = set(zip(table["id"].to_pylist(), table["n"].to_pylist(), strict=True))
    return table.num_rows, len(different)


def delta_files(table: Path) -> list[str]:
    """Return the files of a Delta table whose log has no checkpoint that replaces it."""
    files: dict[str, None] = {}
    for commit in sorted((table / "_delta_log").glob("*.json")):
        for line in commit.read_bytes().splitlines():
            action = msgspec.json.decode(line)
            if "add" in action:
                files[unquote(action["add"]["path"])] = None
            elif "remove" in action:
                files.pop(unquote(action["remove"]["path"]), None)
    return [str(table / path) for path in files]


def positions_line(directory: Path, outcome: DemoOutcome) -> tuple[str, bool]:
    """Return a line of text, and whether all acknowledged readings are present."""
    rows, different = positions(directory)
    acknowledged = outcome.counts.get(tally.ACKNOWLEDGED, 0)
    name = POSITIONS_DELTA if (directory / POSITIONS_DELTA).is_dir() else POSITIONS
    return (
        f"{rows:,} rows of QoS 1 and 2 in {name}, of {different:,} readings; {acknowledged:,} were acknowledged",
        different >= acknowledged,
    )


def audit_lines(found: dict[str, Any]) -> list[tuple[str, bool]]:
    """Format the output of `pipeline audit --json` as text."""
    audit = msgspec.convert(found, DeliveryAudit)
    dropped: Counter[str] = Counter()
    for total in audit.totals:
        dropped.update(total.dropped)
    sums = [
        f"{sum(getattr(total, what) for total in audit.totals):,} {what}"
        for what in ("accepted", "refused", "due", "delivered", "acknowledged")
    ]
    lines = [(", ".join(sums), True)]
    if dropped:
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in dropped.most_common())
        lines.append((f"dropped: {reasons}", True))
    lines += [(sentence(finding), False) for finding in audit.findings[:FINDINGS_MAX]]
    lines.append((verdict(audit), audit.clean and audit.until > 0.0))
    return lines
