"""From PUBLISH to PUBREL: admission, QoS 2 receiving, numbered publications."""
