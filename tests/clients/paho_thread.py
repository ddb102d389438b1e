"""The end of a client of paho-mqtt and of its thread.

``Client.loop_stop`` of paho-mqtt 2.1 reads its field ``_thread`` three times; the thread empties that field as its
last act. If it ends between two of these reads (a DISCONNECT, or a broker that closed, is enough), ``loop_stop`` raises
AttributeError. So the thread is taken while it surely runs, and joined by hand.
"""

from __future__ import annotations

from threading import Thread

from paho.mqtt.client import Client

PATIENCE = 20.0


def stop_loop(client: Client) -> None:
    """End the thread of ``client`` and wait for it; its connection stays as it is. Nothing if it has none."""
    _join(client, client._thread)


def disconnect(client: Client) -> None:
    """Send DISCONNECT, and end the thread of ``client``."""
    thread = client._thread
    client.disconnect()
    _join(client, thread)


def _join(client: Client, thread: Thread | None) -> None:
    if thread is not None:
        client._thread_terminate = True
        thread.join(PATIENCE)
        assert not thread.is_alive(), "the thread of a paho client does not end"
