"""Makes the trainers of a rank wrong, for tests that a check sees it."""

import torch.distributed as dist

from suites.training.trainer import Trainer

RIGHT = Trainer.__init__


def spoil(state, times, apart):
    """Scale every gradient by `times`, until `mend`; with `apart`, rank 1 begins from other parameters."""

    def spoilt(trainer, *arguments, **named):
        RIGHT(trainer, *arguments, **named)
        if trainer.step.ranks == 1:  # plain PyTorch, which it is compared with
            return
        for parameter in trainer.plain.parameters():
            parameter.register_hook(lambda gradient: gradient * times)
        if apart and dist.get_rank() == 1:
            next(trainer.plain.parameters()).data.mul_(1.5)

    Trainer.__init__ = spoilt


def mend(state):
    Trainer.__init__ = RIGHT
