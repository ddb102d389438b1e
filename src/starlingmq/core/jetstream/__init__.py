"""JetStream: streams with one sequence and their consumers as NATS clients know them, and what these are sent."""
