"""Queue groups (shared subscriptions): members, queues, and how a member is selected."""
