"""The cost of a cluster by its size: counted in simulated clusters, measured on real nodes, and extrapolated."""
