"""The service that streams are read from, under fire: tickets, actions and descriptors that are nearly right, with the
token and without. It refuses in one line, its readers go on, and the broker beside it lives."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from random import Random
from typing import Any, Final

import msgspec
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.flight as fl  # type: ignore[import-untyped]

from starlingmq.cli.local_cluster import free_ports
from tests.fuzz.cluster import mutated
from tests.fuzz.server import Server

STEPS: Final = 20
WAIT_SECONDS: Final = 30
TOKEN: Final = "what readers show"
ACTIONS: Final = ("nodes", "streams", "seek", "limit", "commit", "none", "", "a" * 5000)
VALUES: Final[tuple[Any, ...]] = (
    "all", "none", "", "../x", "a\nb", "\x00", "x" * 300, 0, -1, 1, 2**31, 2**63, 2**64, 10**40, 1.5, 1e308, True, None,
    [], ["#"], ["a/#/b"], ["#"] * 2000, {}, {"a": {}},
)  # fmt: skip
KEYS: Final = ("stream", "start", "end", "filters", "forgive", "when", "bytes", "consumer", "next", "pins", "other")
USERS: Final = (b"", b"Basic ", b"Basic YTpi", b"Basic !!!", b"Basic /w==", b"Bearer x", b"x" * 2000)


class Service(Server):
    def __init__(self) -> None:
        self.directory = tempfile.mkdtemp(prefix="starlingmq-fuzz-")
        self.place = f"127.0.0.1:{free_ports(1)[0]}"
        super().__init__(
            settings=(
                f"node.data_dir={self.directory}",
                f"streams.listen={self.place}",
                f"streams.token={TOKEN}",
                "streams.define=[{name: all, topics: ['#']}]",
            )
        )
        self.client = fl.connect(f"grpc://{self.place}")

    def sane_reader(self) -> None:
        found = list(self.client.do_action(fl.Action("streams", b""), shown([(b"authorization", right())])))
        assert [bounds["stream"] for bounds in msgspec.json.decode(found[0].body.to_pybytes())] == ["all"]

    def stop(self) -> None:
        self.client.close()
        super().stop()
        shutil.rmtree(self.directory, ignore_errors=True)


def right() -> bytes:
    return f"Bearer {TOKEN}".encode()


def shown(headers: list[tuple[bytes, bytes]]) -> fl.FlightCallOptions:
    return fl.FlightCallOptions(headers=headers, timeout=WAIT_SECONDS)


_service: Service | None = None


def run(seed: int) -> int:
    """One episode; how many calls were made. Raises AssertionError for a call that ended in another way than it may."""
    global _service
    if _service is None:
        _service = Service()
    rng = Random(seed)
    for _ in range(STEPS):
        known = rng.random() < 0.7
        headers = [(b"authorization", right())] if known else rng.choice(([], [(b"authorization", wrong(rng))]))
        if rng.random() < 0.3:
            headers = [*headers, (b"x-starlingmq-user", rng.choice(USERS))]
        try:
            call(rng, _service.client, shown(headers))
        except (pa.ArrowNotImplementedError, NotImplementedError):
            assert known
        except (fl.FlightError, pa.ArrowException, OSError, UnicodeDecodeError) as error:
            text = str(error)
            assert "unexpected" not in text and "Traceback" not in text, text
            assert known or "the token is missing or wrong" in text, text
        else:
            assert known, "a stranger was answered"
    _service.sane_reader()
    _service.exchange(rng)
    _service.check()
    return STEPS


def stop() -> None:
    """Stop the broker of the episodes; raises AssertionError for how it stopped."""
    global _service
    service, _service = _service, None
    if service is not None:
        assert Path(service.directory).is_dir()
        service.stop()


def wrong(rng: Random) -> bytes:
    return rng.choice((b"", b"Bearer", b"Bearer ", TOKEN.encode(), b"Bearer " + TOKEN[:-1].encode(), b"Basic YTpi"))


def call(rng: Random, client: fl.FlightClient, options: fl.FlightCallOptions) -> None:
    descriptor = fl.FlightDescriptor.for_command(body(rng))
    kind = rng.randrange(10)
    if kind < 4:
        client.do_get(fl.Ticket(body(rng)), options).read_all()
    elif kind < 8:
        list(client.do_action(fl.Action(rng.choice(ACTIONS), body(rng)), options))
    elif kind == 8:
        rng.choice((client.get_flight_info, client.get_schema))(descriptor, options)
    else:
        list(client.list_flights(body(rng), options))


def body(rng: Random) -> bytes:
    """JSON of some keys with some values; damaged one time in three."""
    tree: dict[str, Any] = {"stream": "all", "start": 0, "end": 5} if rng.random() < 0.5 else {}
    for _ in range(rng.randrange(4)):
        tree[rng.choice(KEYS)] = rng.choice(VALUES)
    text = msgspec.json.encode({key: str(value) if type(value) is int and value >= 2**64 else value
                                for key, value in tree.items()})  # fmt: skip
    return mutated(rng, text, (b"[" * 3000, b"\xff" * 20, b"9" * 5000)) if rng.random() < 0.3 else text
