"""In which types the step computes and keeps its states."""
