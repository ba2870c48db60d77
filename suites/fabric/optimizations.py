"""The optimizations of the fabric suite, which are those of any leaf-spine fabric."""

from harness.instruments.network.routing import central_te, e_ecmp, path_pinning, qp_scaling

__all__ = ["central_te", "e_ecmp", "path_pinning", "qp_scaling"]
