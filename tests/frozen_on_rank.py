"""What the ranks of tests/test_offload_bytes.py and test_offload_losses.py are asked to do beside the suite.

Deepspeed's third stage and `harness.instruments.memory.allocator.watch` begin with collections of garbage,
which
look through all of torch and deepspeed each time.
"""

import gc
from unittest.mock import patch

from suites.offload import on_rank


def freeze(memory):
    """Freeze the rank's objects, so that collections of garbage do not traverse them."""
    gc.unfreeze()
    gc.collect()
    gc.freeze()


def footprint(memory, **given):
    """Return `on_rank.footprint`, with few bytes copied for the copy rate, which no test needs."""
    freeze(memory)
    with patch.object(on_rank, "COPIED_B", 2**10):
        return on_rank.footprint(memory, **given)
