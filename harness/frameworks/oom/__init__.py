"""Out-of-memory messages of torch: what they say, which tensor was asked for, and what would change it."""
