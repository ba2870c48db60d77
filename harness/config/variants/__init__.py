"""What a suite can run: its optimizations, their techniques, and the workloads to which each applies."""
