"""What several ranks of a training step need."""
