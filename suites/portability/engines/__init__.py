"""Compilers of the captured graph, each an optimization: those that run it here, and those for targets."""
