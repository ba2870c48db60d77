"""Several connections, which a hash of addresses cannot tell apart."""

from harness.instruments.network.leaf_spine.routing import Settings
from harness.instruments.network.leaf_spine.routing import qp_scaling as apply

__all__ = ["Settings", "apply"]
