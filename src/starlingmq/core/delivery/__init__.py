"""Messages on their way to sessions, group members and other nodes, and their acknowledgements."""
