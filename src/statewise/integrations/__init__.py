"""Other projects' kernels behind our ops, one module a project; each imports its package only when asked for."""
