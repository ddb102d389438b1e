"""The replicated route table: which node has subscribers for which filters."""
