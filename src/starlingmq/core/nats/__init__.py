"""The NATS protocol: commands of clients, on the same topics, routes and stores as MQTT."""
