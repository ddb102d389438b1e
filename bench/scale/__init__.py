"""What a cluster costs by its size: counted in simulated clusters, measured on real nodes, and drawn on from there."""
