"""A module per framework: its keys, what each means, and how its file is written."""
