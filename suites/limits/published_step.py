"""A published step as the formulas see it, and bandwidths that were given in the wrong unit."""

from __future__ import annotations

import math

import numpy as np

from harness.instruments.transformer.shape import TransformerShape
from harness.records import Unavailable
from suites.limits.formula import Model, ParallelLayout, StepTime, step_time
from suites.limits.workload import Workload
from suites.training.step_time.rates.gpu import device_names, gpu_of


def model_of(given: Workload) -> Model:
    """Return the sizes of the published model."""
    shape = TransformerShape(
        num_hidden_layers=given.num_hidden_layers,
        hidden_size=given.hidden_size,
        num_attention_heads=given.num_attention_heads,
        num_key_value_heads=given.num_key_value_heads,
        head_dim=given.hidden_size // given.num_attention_heads,
        intermediate_size=given.intermediate_size,
        vocab_size=given.vocab_size,
        gated=given.mlp_matrices == 3,
    )
    return Model.of(shape, given.seq_len)


def micro_batches_of(given: Workload) -> int:
    """Return the micro-batches of one rank per step; raises `Unavailable` where they do not divide."""
    of_rank = given.sequences // given.dp_size
    if of_rank % given.micro_batch_size:
        raise Unavailable(
            f"micro_batch_size={given.micro_batch_size}: expected a divisor of sequences / dp_size "
            f"({of_rank})"
        )
    chunks = given.pp_size * given.virtual_stages
    if given.pipeline_layers % chunks:
        raise Unavailable(
            f"virtual_stages={given.virtual_stages}: {given.pipeline_layers} pipeline_layers do not divide "
            f"by pp_size * virtual_stages ({chunks})"
        )
    return of_rank // given.micro_batch_size


def layout_of(given: Workload) -> ParallelLayout:
    """Return the published layout; raises `Unavailable` where it does not divide."""
    micro_batches = micro_batches_of(given)
    sizes = (given.tp_size, 1, given.cp_size, given.dp_size, given.pp_size, 1)
    return ParallelLayout(*(np.array([float(one)]) for one in (*sizes, micro_batches, given.virtual_stages)))


def tokens_of(given: Workload) -> int:
    """Return the tokens of one batch."""
    return given.sequences * given.seq_len


def published_time(given: Workload) -> StepTime:
    """Return the calculated seconds of the published step.

    Where embedding and loss take a layer's place each, every rank has as much work as whole layers give it.
    """
    model = model_of(given)
    if given.pipeline_layers > given.num_hidden_layers:
        model = model._replace(layers=given.pipeline_layers, vocab=0)
    return step_time(given, model, layout_of(given), float(tokens_of(given)))


def utilization(given: Workload, step_s: float) -> float:
    """Return the model FLOP of the step over those that its GPUs could do in `step_s` seconds."""
    flop = model_of(given).flop(tokens_of(given))
    return flop / (step_s * given.gpus * given.peak_FLOP_per_s)


BINARY_PREFIXES = {"GiB/s for GB/s": 2.0**30 / 1e9, "TiB/s for TB/s": 2.0**40 / 1e12}
"""What a value is too large by where it was given with a binary prefix."""

SAME = 1e-3
"""Relative difference within which a value is taken to be such a multiple: it has four digits."""


PORTS_B_PER_S = (12.5e9, 25e9, 50e9, 100e9)
"""Network ports of 100, 200, 400 and 800 Gbit/s."""


def refuse_binary_units(given: Workload) -> None:
    """Raise `Unavailable`, one line that names the input, where a nominal bandwidth has a binary prefix."""
    for gpu in filter(None, map(gpu_of, device_names())):
        if gpu.title == given.device_name:
            _refuse("memory_B_per_s", given.memory_B_per_s, gpu.memory_B_per_s)
            _refuse("node_link_B_per_s", given.node_link_B_per_s, gpu.link_B_per_s)
    _refuse("network_B_per_s", given.network_B_per_s, *PORTS_B_PER_S)


def _refuse(name: str, value: float, *nominal: float) -> None:
    for one in nominal:
        for meant, ratio in BINARY_PREFIXES.items():
            if math.isclose(value, one * ratio, rel_tol=SAME):
                raise Unavailable(
                    f"{name}={value:g}: {ratio:.3f} times the nominal {one:g} B/s; is it in {meant}?"
                )
