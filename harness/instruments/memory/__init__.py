"""Bytes: what allocators hold, on real tensors and on fake ones."""
