"""Memory of processes as the kernel counts it."""
