"""Who may connect, publish and subscribe, and how much of it: access rules, quotas, admission."""
