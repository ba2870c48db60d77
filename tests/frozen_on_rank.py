"""What the ranks of tests/test_offload_bytes.py and test_offload_losses.py are asked to do beside the suite.

Deepspeed's third stage and `harness.instruments.memory.allocator.watch` begin with collections of garbage,
which
look through all of torch and deepspeed each time.
"""

import gc
from unittest.mock import patch

from suites.offload import on_rank


def freeze(memory):
    """What the rank holds by now is not looked through again."""
    gc.unfreeze()
    gc.collect()
    gc.freeze()


def footprint(memory, **given):
    """`on_rank.footprint`, but few bytes are copied to tell the speed of copies, which no test asks for."""
    freeze(memory)
    with patch.object(on_rank, "COPIED_B", 2**10):
        return on_rank.footprint(memory, **given)
