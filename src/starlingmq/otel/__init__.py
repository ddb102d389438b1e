"""Traces for OpenTelemetry: what becomes of messages, as spans. Loaded where ``tracing.endpoint`` is set."""
