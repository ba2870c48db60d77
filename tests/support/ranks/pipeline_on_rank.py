"""What test_pipeline.py asks of real ranks, besides `suites.training.on_rank`."""

import gc

from harness.instruments.memory.allocator import watch
from suites.training.on_rank import DrainGloo
from suites.training.techniques import build_step
from suites.training.trainer import CPU, Trainer


def second_step_B(state, step):
    """Return the most live bytes of the second step, which draws its batches as a dry run does."""
    gc.collect()
    with DrainGloo(), watch(CPU) as watched:
        watched.mark("build")
        trainer = Trainer(build_step(**step))
        for number in range(2):
            watched.mark(f"step {number}")
            trainer.train_step()
    trainer.close()
    return watched.peaks[-1].live_B
