"""What makes the ranks of tests/support/ranks/offload_ranks.py cheaper.

Deepspeed's third stage and `harness.instruments.memory.allocator.watch` begin with collections of garbage,
which look through all of torch and deepspeed each time.
"""

import gc

from suites.offload import on_rank


def freeze(state):
    """Freeze the rank's objects, so that collections of garbage do not traverse them.

    What was frozen before stays so: the collection here traverses only what was made since.
    """
    gc.collect()
    gc.freeze()


def settle(state):
    """Freeze, and copy few bytes to measure the rate of copies, which no test asks for."""
    on_rank.COPIED_B = 2**10
    freeze(state)
