"""A message, its delivery to one receiver (Outgoing), and references to stored messages."""
