"""Queue groups (shared subscriptions): members, group queues, and the selection of members."""
