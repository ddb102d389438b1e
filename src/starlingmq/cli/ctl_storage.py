"""``starlingmq ctl storage``: what its commands print."""

from __future__ import annotations

from typing import Final

from starlingmq.cli.ctl_ask import Lines, Result
from starlingmq.cli.ctl_declared import shows
from starlingmq.cli.progress import amount

DAMAGED: Final = 1  # exit code


@shows("storage.check")
def check(found: Result, given: Result) -> Lines:
    """The exit code is 1 if there is damage."""
    yield from found["damage"]
    if found["omitted"]:
        yield f"and {found['omitted']:,} more"
    yield from (f"note: {note}" for note in found["notes"])
    yield (
        f"{found['records']:,} records ({amount(found['bytes'], 'bytes')}), {found['values']:,} values, "
        f"{found['sessions']:,} sessions, {found['references']:,} references: "
        + (f"{len(found['damage']) + found['omitted']:,} damaged" if found["damage"] else "whole")
    )
    return DAMAGED if found["damage"] else 0


@shows("storage.stats")
def stats(found: Result, given: Result) -> Lines:
    journal, checkpoint = found["journal"], found["checkpoint"]
    yield (
        f"state          {found['state']}, {('a broker is running' if found['serving'] else 'no broker is running')}"
    )
    if found["durability"] is not None:
        yield f"durability     {found['durability']}"
    yield f"sessions       {found['sessions']:,} with {found['subscriptions']:,} subscriptions"
    yield f"messages       {found['queued']:,} queued, {found['inflight']:,} in flight, {found['retained']:,} retained"
    yield (
        f"journal        {journal['engine']}, {amount(journal['bytes'], 'bytes')} in {journal['segments']:,} segments, "
        f"records {journal['first']:,} to {journal['next']:,}"
    )
    yield f"reclaimable    {journal['unneeded_segments']:,} segments, {amount(journal['unneeded_bytes'], 'bytes')}"
    age = checkpoint["age_seconds"]
    yield (
        f"checkpoint     at record {checkpoint['offset']:,}, {checkpoint['behind']:,} behind, "
        + ("written before the start" if age is None else f"{age:,.0f} s ago")
        + (f"; the last one failed: {checkpoint['failure']}" if checkpoint["failure"] else "")
    )
    for each in found["streams"]:
        yield f"stream         {each['name']}: {each['messages']:,} messages, {amount(each['bytes'], 'bytes')}"
    yield f"key-value      {amount(found['kv_bytes'], 'bytes')}"
    yield f"disk           {amount(found['used'], 'bytes')} used, {amount(found['free'], 'bytes')} free"
    return 0


@shows("storage.compact")
def compact(found: Result, given: Result) -> Lines:
    yield f"{amount(found['before']['used'], 'bytes')} before, {amount(found['after']['used'], 'bytes')} now"
    return 0
