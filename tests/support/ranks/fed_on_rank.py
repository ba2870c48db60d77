"""What ranks of tests/suites/dataloader/test_dataloader_suite.py do."""

import numpy as np
import torch.distributed as dist

from suites.dataloader.batch import PackedBatch
from suites.dataloader.fed_step import FedTrainer, local_tokens


def _batch(batches):
    tokens, segments, documents, real_tokens = batches[dist.get_rank()]
    return PackedBatch(np.array(tokens, np.uint16), np.array(segments, np.uint16), documents, real_tokens)


def gradients(state, model, cp_size, batches):
    trainer = FedTrainer(**model, cp_size=cp_size, seed=3)
    loss = trainer.gradients(local_tokens(_batch(batches), trainer.group))
    flat = [value for one in trainer.model.parameters() for value in one.grad.reshape(-1).tolist()]
    return {"loss": loss, "gradients": flat}


def flop(state, model, cp_size, batches):
    return FedTrainer(**model, cp_size=cp_size, seed=3).step(_batch(batches))[1]
