"""Bytes per GPU by a closed formula, until suites.training.layouts has its own."""

from __future__ import annotations

import numpy as np

from suites.training.layouts.layout import Layouts, Training
from suites.training.layouts.shape import TransformerShape
from suites.training.step_time.collectives import Floats
from suites.training.step_time.gpu import Gpu
from suites.training.step_time.stages import stages_of


def memory_B(shape: TransformerShape, layouts: Layouts, training: Training, gpu: Gpu) -> Floats:
    """Return the peak bytes per GPU: states by ZeRO, activations of the first stage, logits of the last."""
    n = len(layouts.dp)
    used = np.zeros(n)
    experts = shape.num_experts * shape.expert_parameters
    for i in range(n):
        pp, tp, cp, ep, etp, zero = (int(getattr(layouts, k)[i]) for k in ("pp", "tp", "cp", "ep", "etp", "zero"))
        counts, head, _ = stages_of(shape, pp, training.program)
        shard = int(layouts.shard_size[i])
        per_layer = shape.attention_matrix_parameters
        moe = shape.num_experts > 0
        dense = shape.layer_parameters(moe) - (experts if moe else 0)
        tokens = float(layouts.micro_batch_size[i]) * training.seq_len / cp
        sp = tp if layouts.sequence_parallel[i] else 1
        gate = shape.matrices_of_mlp
        wide = (shape.experts_per_token * shape.moe_intermediate_size + shape.shared_intermediate_size) if moe else shape.intermediate_size
        kept = tokens * (2 * shape.hidden_size * 6 / sp + 2 * (2 * shape.query_size + shape.key_value_size) / tp + 2 * wide * (gate if gate == 3 else 2) / tp)
        if layouts.recompute[i] == 2:
            kept = tokens * 2 * shape.hidden_size / sp
        grad, of_logits, base = 0.0, 8.0, 2e9
        if training.program == "nanotron":
            # fitted to the development set's memory, whole steps
            kept = tokens * 2 * (20 * shape.hidden_size / tp + 0.17 * shape.hidden_size + 1.9 * shape.intermediate_size / tp)
            grad, of_logits, base = 2.7, 14.0, 0.1e9
        m = int(layouts.micro_batches[i])
        best = 0.0
        for rank, count in enumerate(counts):
            vocabulary = shape.vocab_size * shape.hidden_size * ((rank == 0) + (rank == head) * (not (shape.tie_word_embeddings and pp == 1)))
            parameters = (count * dense + vocabulary) / tp
            of_experts = count * experts / ep / etp if moe else 0.0
            states = _states_B(parameters, zero, shard, training) + _states_B(of_experts, zero, max(1, shard * tp // ep // etp), training)
            flight = min(m, pp - rank) if layouts.virtual_stages[i] == 1 else min(m, pp - rank) * (1 + (pp - 1) / pp / float(layouts.virtual_stages[i]))
            act = count * kept * flight
            logits = tokens * shape.vocab_size / tp * of_logits if rank == head else 0.0
            best = max(best, states + grad * parameters + act + logits)
        used[i] = best + base
    return used


def _states_B(parameters: float, zero: int, shard: int, training: Training) -> float:
    """Return the bytes of weights, gradients and optimizer states of so many parameters."""
    if training.program == "composer":
        return parameters * 16.0 / (shard if zero == 3 else 1)
    grad = 4.0
    if zero == 0:
        return parameters * (2.0 + grad + 12.0)
    if zero == 1:
        return parameters * (2.0 + grad + 12.0 / shard)
    if zero == 2:
        return parameters * (2.0 + (grad + 12.0) / shard)
    return parameters * (2.0 + grad + 12.0) / shard
