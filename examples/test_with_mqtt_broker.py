"""How to test an MQTT program: request the fixture ``mqtt_broker`` and connect the program to it.

The fixture is available once starlingmq is installed. Run this file with ``pytest examples``.
"""

from __future__ import annotations

import json

import paho.mqtt.client as mqtt
import paho.mqtt.publish as publish
import pytest
from paho.mqtt import MQTTException
from paho.mqtt.enums import CallbackAPIVersion

from starlingmq.pytest_plugin import MqttBroker


class Thermostat:
    """The program under test: turns the heating on below 20 degrees."""

    def __init__(self, host: str, port: int) -> None:
        self.client = mqtt.Client(CallbackAPIVersion.VERSION2, client_id="thermostat")
        self.client.on_connect = lambda client, *_: client.subscribe("home/+/temperature", qos=1)
        self.client.on_message = self.on_message
        self.client.connect(host, port)
        self.client.loop_start()

    def on_message(self, client: mqtt.Client, userdata: object, message: mqtt.MQTTMessage) -> None:
        room = message.topic.split("/")[1]
        heat = float(message.payload) < 20
        client.publish(f"home/{room}/heating", json.dumps({"on": heat}), qos=1, retain=True)

    def close(self) -> None:
        self.client.disconnect()
        self.client.loop_stop()


@pytest.mark.parametrize(("temperature", "heat"), [("18.5", True), ("21.0", False)])
def test_it_heats_when_it_is_cold(mqtt_broker: MqttBroker, temperature: str, heat: bool) -> None:
    thermostat = Thermostat(mqtt_broker.host, mqtt_broker.port)
    mqtt_broker.wait_for_event("subscribed", "thermostat")  # so that it does not miss the next message
    publish.single("home/bath/temperature", temperature, qos=1, hostname=mqtt_broker.host, port=mqtt_broker.port)
    decision = mqtt_broker.wait_for("home/bath/heating")
    assert json.loads(decision.payload) == {"on": heat}
    assert decision.retain
    thermostat.close()


@pytest.mark.mqtt_broker(authenticate=lambda request: request.username == "thermostat")
def test_the_broker_can_be_told_whom_to_let_in(mqtt_broker: MqttBroker) -> None:
    with pytest.raises(MQTTException, match="Not authorized"):
        publish.single("home/bath/temperature", "1", hostname=mqtt_broker.host, port=mqtt_broker.port)
    assert mqtt_broker.messages == []
