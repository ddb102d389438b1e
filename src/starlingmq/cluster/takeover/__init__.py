"""Sessions that move between nodes: ownership, takeover source and target, cut markers."""
