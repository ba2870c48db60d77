"""Bytes: what allocators hold, for real tensors and for fake ones."""
