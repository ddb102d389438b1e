"""MQTT packets in, acknowledgements out: CONNECT, PUBLISH, SUBSCRIBE and their properties."""
