"""HTTP: what an operator asks and tells a broker, its metrics, whether it is well, and the dashboard."""
