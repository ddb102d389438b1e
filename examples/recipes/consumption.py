"""Consumption between two readings of a meter; its counter begins at 0 again after a power failure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd  # type: ignore[import-untyped]
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle, TimerValues


class Consumption(StatefulProcessor):
    """Spark calls it for each meter of a batch, with its new rows."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.last = handle.getValueState("last", "at timestamp, counter double")

    def handleInputRows(
        self, key: Any, rows: Iterator[pd.DataFrame], timerValues: TimerValues
    ) -> Iterator[pd.DataFrame]:
        before = self.last.get()  # of the earlier batches; None for a new meter
        found = []
        for row in pd.concat(rows).sort_values("at").itertuples():
            if before is not None:
                at, counter = before
                if row.at <= at:
                    continue
                restarted = row.counter < counter
                found.append((key[0], row.at, row.counter if restarted else row.counter - counter, restarted))
            before = (row.at.to_pydatetime(), row.counter)
        if before is not None:
            self.last.update(before)
        yield pd.DataFrame(found, columns=["meter", "at", "used", "restarted"])
