"""Streams and consumers of JetStream: settings, state, delivery."""
