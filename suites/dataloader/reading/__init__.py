"""Documents out of files of each format."""
