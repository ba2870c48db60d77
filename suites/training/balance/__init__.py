"""Which data-parallel group gets which documents."""
