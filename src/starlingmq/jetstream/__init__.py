"""JetStream's API: configurations, requests to ``$JS.API.>``, answers in nats-server's JSON."""
