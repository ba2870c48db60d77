"""What is injected into a step, and how much of it there was."""
