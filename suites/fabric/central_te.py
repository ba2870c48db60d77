"""Central traffic engineering: routes computed from the traffic matrix, the heaviest pair of NICs first."""

from harness.instruments.network.leaf_spine.routing import central_te as apply

__all__ = ["apply"]
