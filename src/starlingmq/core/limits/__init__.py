"""Access rules, quotas and admission: which clients may connect, publish and subscribe, and how much."""
