"""What suites measure with; instruments import `harness.records` only."""
