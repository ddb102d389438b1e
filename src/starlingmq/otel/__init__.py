"""Tracing with OpenTelemetry: the way of messages as spans. Imported only if ``tracing.endpoint`` is set."""
