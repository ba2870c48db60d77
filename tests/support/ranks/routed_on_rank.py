"""What test_ranks_of_a_step.py asks of real ranks, besides `suites.training.on_rank`."""

import gc

import torch

from harness.instruments.memory.allocator import watch
from suites.training.models.mixture import MixtureMLP
from suites.training.on_rank import DrainGloo
from suites.training.techniques import build_step
from suites.training.trainer import CPU, Trainer

CHOOSE = MixtureMLP.choose


def second_step_B(state, step, routing):
    """Return the most live bytes of the second step under a routing: "own", "even" or "first"."""
    MixtureMLP.choose = {"own": CHOOSE, "even": evenly, "first": to_the_first}[routing]
    gc.collect()
    with DrainGloo(), watch(CPU) as watched:
        watched.mark("build")
        trainer = Trainer(build_step(**step))
        for number in range(2):
            watched.mark(f"step {number}")
            trainer.train_step()
    trainer.close()
    MixtureMLP.choose = CHOOSE
    return watched.peaks[-1].live_B


def evenly(mixture, probabilities_NE):
    """Give each expert an equal share of the choices; tensors are made as in `MixtureMLP.choose`."""
    count = probabilities_NE.shape[0] * mixture.per_token
    return chosen_as(mixture, probabilities_NE, torch.arange(count) % mixture.count)


def to_the_first(mixture, probabilities_NE):
    count = probabilities_NE.shape[0] * mixture.per_token
    return chosen_as(mixture, probabilities_NE, torch.arange(count) % mixture.per_token)


def chosen_as(mixture, probabilities_NE, experts_M):
    """Choose these experts: the values are changed beneath autograd, whose backward pass follows them."""
    weights_NK, chosen_NK = CHOOSE(mixture, probabilities_NE)
    chosen_NK.data.copy_(experts_M.view_as(chosen_NK))
    return weights_NK, chosen_NK
