"""NATS commands in, messages out, on the same topics, routes and stores as MQTT."""
