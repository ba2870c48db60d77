"""Which tensors of a collective operation are communication buffers, for `fake_tensors`.

The buffers are made by plain operations (`empty`), so only the collective operations show what they are for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

BUFFERS: dict[tuple[str, str], int] = {
    ("fsdp", "all_gather_copy_in"): 1,
    ("fsdp", "split_with_sizes_copy"): -1,
    ("fsdp", "chunk_cat"): -1,
    ("c10d", "_allgather_base_"): 0,
    ("c10d", "allgather_into_tensor_coalesced_"): 0,
    ("c10d", "allgather_"): 0,
    ("c10d", "_reduce_scatter_base_"): 1,
    ("c10d", "reduce_scatter_tensor_coalesced_"): 1,
    ("c10d", "reduce_scatter_"): 1,
    ("c10d", "allreduce_"): 0,
    ("c10d", "reduce_"): 0,
    ("c10d", "broadcast_"): 0,
    ("c10d", "alltoall_base_"): 0,
    ("c10d", "recv_"): 0,
}
"""Index of the buffer argument, keywords last: gathered or received into, or reduced from.

Gathered parameters are among them (torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py).
"""


def collective_roles(operation: Any, arguments: Sequence[Any]) -> Iterator[tuple[torch.Tensor, str]]:
    """Return the operation's buffer arguments (keywords last) with their kind, unless that is known better.

    Empty for operations that are not collective. FSDP2's unreduced gradients enter `chunk_cat`.
    """
    name = (operation.namespace, operation._opname)
    if name == ("fsdp", "chunk_cat"):
        yield from ((tensor, "gradients") for tensor in arguments[0])
    if name in BUFFERS:
        buffers = tree_leaves(arguments[BUFFERS[name]])
        yield from ((tensor, "communication") for tensor in buffers if isinstance(tensor, torch.Tensor))
