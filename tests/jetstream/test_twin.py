"""nats-server of today as a twin: the same program against both, the answers compared field by field."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.bridges.nats_real import HAS_NATS_SERVER, ends
from tests.jetstream.programs import PROGRAMS
from tests.jetstream.republish_programs import REPUBLISH_PROGRAMS
from tests.jetstream.source_programs import SOURCE_PROGRAMS
from tests.jetstream.twin import both, differences

pytestmark = [HAS_NATS_SERVER]


EVERY = {**PROGRAMS, **REPUBLISH_PROGRAMS, **SOURCE_PROGRAMS}


@pytest.mark.parametrize("name", EVERY)
async def test_the_broker_answers_as_nats_server_does(name: str, tmp_path: Path) -> None:
    async with ends(tmp_path) as both_ends:
        theirs, ours = await both(both_ends, tmp_path, EVERY[name])
    found = differences(theirs, ours)
    assert not found, "\n".join([f"{len(found)} of {len(theirs)} differ", *found])
