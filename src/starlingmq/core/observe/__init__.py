"""What the broker counts and reports about itself: counters, $SYS topics, events, traces."""
