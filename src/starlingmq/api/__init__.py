"""The HTTP side: operator actions, metrics, health checks, and the dashboard."""
