"""Process groups, ranks and launchers."""
