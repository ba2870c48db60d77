"""A static route per destination: the index of the host in its rack decides which spine leads to it."""

from harness.instruments.network.leaf_spine.routing import path_pinning as apply

__all__ = ["apply"]
