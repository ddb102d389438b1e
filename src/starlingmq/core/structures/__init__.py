"""Data structures that know nothing of the broker: a dict that grows in steps, sorted topics, state tables."""
