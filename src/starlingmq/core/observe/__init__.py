"""Counters, events of messages and samples, recorded while the broker works. ``core.reports`` publishes them."""
