"""Traces of torch.profiler: read, broken down into factors and shares, drawn as a timeline."""
