"""The service that streams are read from, and strangers: every call asks for the token, whatever comes is bounded."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.flight as fl  # type: ignore[import-untyped]
import pytest

from starlingmq import Broker
from starlingmq.bulk.flight import Calls, StreamFlight
from starlingmq.bulk.protocol import FILTERS_MAX, REQUEST_BYTES_MAX
from starlingmq.config.settings import ConfigError, load_config
from starlingmq.net.bulk_process import TOKEN_FILE, BulkProcess, check_bulk
from tests.bulk.conftest import TOKEN, settings
from tests.patience import within

Call = Callable[[fl.FlightClient, fl.FlightCallOptions], Any]
TICKET = msgspec.json.encode({"stream": "all", "start": 0, "end": 10})
DESCRIPTOR = fl.FlightDescriptor.for_path("all")


def put(client: fl.FlightClient, options: fl.FlightCallOptions) -> None:
    writer, _ = client.do_put(DESCRIPTOR, pa.schema([]), options)
    writer.close()


def exchange(client: fl.FlightClient, options: fl.FlightCallOptions) -> None:
    writer, reader = client.do_exchange(DESCRIPTOR, options)
    writer.done_writing()
    reader.read_chunk()


def action(name: str, body: bytes = b"") -> Call:
    return lambda client, options: list(client.do_action(fl.Action(name, body), options))


STREAM = msgspec.json.encode({"stream": "all"})
ACTIONS: dict[str, bytes] = {
    "nodes": b"",
    "streams": b"",
    "seek": msgspec.json.encode({"stream": "all", "when": 0.0}),
    "limit": msgspec.json.encode({"stream": "all", "start": 0, "bytes": 1}),
    "commit": msgspec.json.encode({"stream": "all", "consumer": "me", "next": 0}),
}
METHODS: dict[str, Call] = {
    "do_get": lambda client, options: client.do_get(fl.Ticket(TICKET), options).read_all(),
    "do_put": put,
    "do_exchange": exchange,
    "get_flight_info": lambda client, options: client.get_flight_info(DESCRIPTOR, options),
    "get_schema": lambda client, options: client.get_schema(DESCRIPTOR, options),
    "list_flights": lambda client, options: list(client.list_flights(b"", options)),
    "list_actions": lambda client, options: client.list_actions(options),
    "do_action none": action("none"),
    **{f"do_action {name}": action(name, body) for name, body in ACTIONS.items()},
}
TOKENS: list[list[tuple[bytes, bytes]]] = [
    [],
    [(b"authorization", b"Bearer wrong")],
    [(b"authorization", b"Bearer ")],
    [(b"authorization", b"")],
    [(b"authorization", TOKEN.encode())],
    [(b"authorization", b"Basic YTpi")],
    [(b"authorization", b"Bearer wrong"), (b"authorization", f"Bearer {TOKEN}".encode())],
    [(b"x-starlingmq-user", b"Basic YTpi")],
]


async def tried(broker: Broker, call: Call, headers: list[tuple[bytes, bytes]]) -> Any:
    def run() -> Any:
        with fl.connect(f"grpc://{broker.read_at}") as client:
            return call(client, fl.FlightCallOptions(headers=headers, timeout=20))

    return await asyncio.to_thread(run)


def test_all_methods_of_flight_are_among_those_that_are_tried() -> None:
    offered = {name for name in dir(fl.FlightServerBase) if name.startswith(("do_", "get_", "list_"))}
    assert offered == {name.partition(" ")[0] for name in METHODS}
    assert set(StreamFlight.ACTIONS) == set(ACTIONS)


async def test_every_method_asks_for_the_token(shared_broker: Broker) -> None:
    for headers in TOKENS:
        for name, call in METHODS.items():
            with pytest.raises((fl.FlightUnauthenticatedError, OSError), match="the token is missing or wrong"):
                await tried(shared_broker, call, headers)
                pytest.fail(f"{name} with {headers}")


OPEN = ("do_action nodes", "do_action streams")  # for who has the token; the second lists what may be read: nothing
RULES = "default: deny\nrules:\n- {allow: publish}\n"


async def test_every_method_asks_for_a_right_to_the_stream(tmp_path: Path) -> None:
    (tmp_path / "acl.yaml").write_text(RULES)
    config = load_config(None, [*settings(tmp_path / "data"), f"auth.acl.file={tmp_path / 'acl.yaml'}"])
    shown = [(b"authorization", f"Bearer {TOKEN}".encode())]
    wrong = [*shown, (b"x-starlingmq-user", b"Basic YTpi")]
    async with Broker(config, listeners=["mqtt://127.0.0.1:0"], authenticate=lambda request: False) as broker:

        async def refused(name: str, headers: list[tuple[bytes, bytes]]) -> None:
            with pytest.raises((fl.FlightError, OSError, pa.ArrowNotImplementedError)):
                await tried(broker, METHODS[name], headers)
                pytest.fail(name)

        names = [name for name in METHODS if name != "list_actions"]
        async with asyncio.TaskGroup() as tasks:  # a login that fails is answered late
            for name in names:
                tasks.create_task(refused(name, wrong))
                if name not in OPEN:
                    tasks.create_task(refused(name, shown))


async def test_a_user_that_cannot_be_read_is_a_reader_without_a_name(tmp_path: Path) -> None:
    (tmp_path / "acl.yaml").write_text(RULES)
    config = load_config(None, [*settings(tmp_path / "data"), f"auth.acl.file={tmp_path / 'acl.yaml'}"])
    async with Broker(config, listeners=["mqtt://127.0.0.1:0"], authenticate=lambda request: True) as broker:
        for user in (b"Basic !!!", b"Basic /w==", b"Bearer x", b"x" * 4000):
            headers = [(b"authorization", f"Bearer {TOKEN}".encode()), (b"x-starlingmq-user", user)]
            with pytest.raises(fl.FlightUnauthorizedError, match="an anonymous reader"):
                await tried(broker, METHODS["do_get"], headers)
            (listed,) = await tried(broker, METHODS["do_action streams"], headers)
            assert listed.body.to_pybytes() == b"[]", "it may read none"


def get(ticket: bytes) -> Call:
    return lambda client, options: client.do_get(fl.Ticket(ticket), options).read_all()


TICKETS = [
    b"",
    b"[" * 100_000,
    b"\xff",
    b'{"stream": "../secret", "start": 0, "end": 1}',
    b'{"stream": "all\\n", "start": 0, "end": 1}',
    b'{"stream": "all", "start": -1, "end": 1}',
    b'{"stream": "all", "start": 0, "end": ' + b"9" * 5000 + b"}",
    b'{"stream": "' + b"a" * 65 + b'", "start": 0, "end": 1}',
    b'{"stream": "all", "start": 0, "end": 1, "filters": [' + b'"a",' * FILTERS_MAX + b'"a"]}',
    b'{"stream": "all", "start": 0, "end": 1, "filters": ["\\ud800"]}',
    b" " * (REQUEST_BYTES_MAX + 1),
]


async def test_requests_that_make_no_sense_are_refused(shared_broker: Broker) -> None:
    shown = [(b"authorization", f"Bearer {TOKEN}".encode())]
    for number, body in enumerate(TICKETS):
        with pytest.raises((fl.FlightError, OSError)) as refused:
            await tried(shared_broker, get(body), shown)
            pytest.fail(f"ticket {number}")
        assert "unexpected" not in str(refused.value) and "Traceback" not in str(refused.value), number
        for name in ACTIONS:
            try:
                await tried(shared_broker, action(name, body), shown)
            except fl.FlightError as error:
                assert "unexpected" not in str(error) and "Traceback" not in str(error), (number, name)
    assert await tried(shared_broker, METHODS["do_action nodes"], shown)


async def test_names_of_consumers_are_bounded_and_printable(shared_broker: Broker) -> None:
    shown = [(b"authorization", f"Bearer {TOKEN}".encode())]
    for consumer in ("", "a\nb", "a\x1b[2J", "\u202e", "x" * 256, "ä" * 200):
        body = msgspec.json.encode({"stream": "all", "consumer": consumer, "next": 0})
        with pytest.raises(fl.FlightServerError, match="consumer"):
            await tried(shared_broker, action("commit", body), shown)


def test_calls_are_bounded_for_each_address_and_for_all() -> None:
    calls = Calls(8)
    running = [calls.one(f"10.0.0.1:{port}") for port in range(2)]
    running += [calls.one(f"[2001:db8::1]:{port}") for port in range(2)]
    for one in running:
        one.__enter__()
    for host in ("10.0.0.1", "[2001:db8::1]"):
        with pytest.raises(fl.FlightUnavailableError, match="too many"), calls.one(f"{host}:9"):
            pass
    more = [calls.one(f"10.0.0.{number}:1") for number in range(2, 6)]
    for one in more:
        one.__enter__()
    with pytest.raises(fl.FlightUnavailableError, match="too many"), calls.one("10.0.0.9:1"):
        pass
    for one in running + more:
        one.__exit__(None, None, None)
    assert not calls.running


@pytest.mark.slow
async def test_large_messages_of_strangers_end_the_service_and_not_the_broker(tmp_path: Path) -> None:
    config = load_config(None, [*settings(tmp_path), "streams.memory=400MiB"])
    async with Broker(config, listeners=["mqtt://127.0.0.1:0"]) as broker:
        first = broker.read_by
        assert Path(f"/proc/{first}/oom_score_adj").read_text().strip() == "1000"
        body = bytes(200 << 20)
        call = action("streams", body)
        async with within(45):  # it is started again
            while broker.read_by in (0, first):
                if broker.read_by == first:
                    await asyncio.gather(*(tried(broker, call, []) for _ in range(3)), return_exceptions=True)
                await asyncio.sleep(0.1)


# Owner of the token


def bulk(tmp_path: Path, *more: str) -> BulkProcess:
    return BulkProcess(load_config(None, [f"node.data_dir={tmp_path}", "streams.listen=127.0.0.1:0", *more]))


def test_a_single_broker_makes_a_token_for_its_owner_and_keeps_it(tmp_path: Path) -> None:
    token = bulk(tmp_path)._token()
    assert len(token) == 64 and bulk(tmp_path)._token() == token
    assert (tmp_path / TOKEN_FILE).stat().st_mode & 0o777 == 0o600
    assert bulk(tmp_path, f"streams.token={TOKEN}")._token() == TOKEN.encode()


@pytest.mark.parametrize(
    "more",
    [
        ["streams.listen=0.0.0.0:0", "cluster.allow_insecure=true"],
        ["cluster.enabled=true"],
        ["cluster.enabled=true", "cluster.secret=0123456789abcdef"],
    ],
)
def test_readers_of_several_machines_need_a_token_and_never_have_the_secret(tmp_path: Path, more: list[str]) -> None:
    with pytest.raises(ConfigError, match=r"streams\.token: readers need a token"):
        check_bulk(bulk(tmp_path, *more).config)


def test_the_token_is_not_the_secret_of_the_cluster(tmp_path: Path) -> None:
    same = ["cluster.enabled=true", "cluster.secret=0123456789abcdef", "streams.token=0123456789abcdef"]
    with pytest.raises(ConfigError, match="must differ from the cluster secret"):
        check_bulk(bulk(tmp_path, *same).config)
