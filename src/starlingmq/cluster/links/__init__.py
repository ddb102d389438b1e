"""Links between two nodes, ordered and acknowledged, and the frames on them."""
