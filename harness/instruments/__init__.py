"""What suites measure with; these know `harness.records` alone."""
