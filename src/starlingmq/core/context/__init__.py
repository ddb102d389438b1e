"""State that all parts share (Context), and the interfaces to the shell (Ready), to the store and to the cluster."""
