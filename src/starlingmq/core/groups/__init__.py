"""State of queue groups (shared subscriptions): members and their selection. ``core.delivery`` gives them messages."""
