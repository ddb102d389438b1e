"""A turn of the broker: its time, the work left in it, long work in pieces, and timers."""
