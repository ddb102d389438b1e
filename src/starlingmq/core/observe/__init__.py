"""Figures and reports of the broker: counters, $SYS topics, events, traces."""
