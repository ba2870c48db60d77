"""What users bring along, read without importing it: a config.json, model code, a trace."""
