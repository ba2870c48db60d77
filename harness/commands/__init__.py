"""What a user types, one module or folder per command."""
