"""SUBSCRIBE and UNSUBSCRIBE, and the replay of retained messages to new subscriptions."""
