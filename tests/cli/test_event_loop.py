"""Which event loop ``node.event_loop`` chooses."""

from __future__ import annotations

import asyncio
import select

import pytest
import uvloop

from starlingmq.cli.serve import UVLOOP_IS_BETTER, event_loop_factory
from starlingmq.config.settings import ConfigError, load_config
from starlingmq.net.broker_loop import BrokerLoop

EPOLL = hasattr(select, "epoll")


def chosen(*listeners: str, name: str = "auto") -> object:
    tls = "tls: {cert: c.pem, key: k.pem}"
    urls = ", ".join(
        f"{{url: '{url}', {tls if url.startswith((*UVLOOP_IS_BETTER, 'mqtts://')) else ''}}}" for url in listeners
    )
    return event_loop_factory(
        load_config(None, [f"node.event_loop={name}", *([f"listeners=[{urls}]"] if urls else [])])
    )


@pytest.mark.skipif(not EPOLL, reason="this system has no epoll")
@pytest.mark.parametrize(
    "listeners", [(), ("mqtt://:0", "nats://:0"), ("unix:///tmp/broker.sock", "ws://:0"), ("mqtts://:0",)]
)
def test_listeners_get_the_loop_that_serves_clients_itself(listeners: tuple[str, ...]) -> None:
    assert chosen(*listeners) is BrokerLoop


@pytest.mark.parametrize("scheme", ["wss", "tls", "nats+wss"])
def test_a_listener_whose_tls_that_loop_does_not_serve_gets_uvloop(scheme: str) -> None:
    assert chosen("mqtt://:0", f"{scheme}://:0") is uvloop.new_event_loop


def test_a_loop_can_be_chosen_by_name() -> None:
    assert chosen(name="uvloop") is uvloop.new_event_loop
    assert chosen(name="asyncio") is None
    if EPOLL:
        assert chosen("ws://:0", name="epoll") is BrokerLoop


def test_without_epoll_the_choice_is_refused_or_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(select, "epoll", raising=False)
    assert chosen() is uvloop.new_event_loop
    with pytest.raises(ConfigError, match="this system has no epoll"):
        chosen(name="epoll")


def test_asyncio_works_with_the_selector_as_with_its_own() -> None:
    if not EPOLL:
        pytest.skip("this system has no epoll")

    async def several_things() -> list[object]:
        loop = asyncio.get_running_loop()
        process = await asyncio.create_subprocess_exec("cat", stdin=-1, stdout=-1)
        out, _ = await process.communicate(b"through a pipe")
        in_a_thread = await loop.run_in_executor(None, lambda: "in a thread")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.Event().wait(), 0.01)
        return [out, in_a_thread, process.returncode]

    with asyncio.Runner(loop_factory=BrokerLoop) as runner:
        assert runner.run(several_things()) == [b"through a pipe", "in a thread", 0]
