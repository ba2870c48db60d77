"""What users already have: their framework's own file, an out-of-memory message, a log."""
