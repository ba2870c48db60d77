"""Sizes of meshes of ranks: who takes which data, their communicators, searches, and formulas' divisors."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import pytest
from real_ranks import SMALL, sharded
from small_steps import CUDA

from suites.memory import suite as memory
from suites.memory.formulas import estimates
from suites.memory.subject import Subject
from suites.memory.thresholds import allowed_ranks
from suites.training.correctness import text_updates
from suites.training.dry_run.dry_run import dry_run
from suites.training.dry_run.largest_batch import NCCL_OF_MORE_B, NCCL_OF_TWO_B, outside_allocator_B

BY_SEQUENCE = {"tensor_parallel": {"sequence_parallel": True}}
LAYERS, SEQUENCES, EXPERTS = ["tensor_parallel"], ["context_parallel"], ["expert_parallel"]
INTERLEAVED = [{"pipeline": {"stages_per_rank": 2}}]
SHARED = ["fsdp2", "expert_parallel", "tensor_parallel"]
WHOLE = ["fsdp2", {"expert_parallel": {"expert_tensor_parallel": False}}, BY_SEQUENCE]
FOUR = ["fsdp2", "tensor_parallel", "context_parallel", "pipeline"]

WORKLOAD = replace(
    SMALL, num_hidden_layers=12, gradient_accumulation_steps=8, num_key_value_heads=4, tp_size=2, seq_len=24
)
MIXTURE = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 96, "ep_size": 2}


class Mesh(NamedTuple):
    """A step, and what follows from its sizes.

    `communicators`: how many connect two ranks, and how many connect more. `search`: the first numbers of
    ranks that the search for the fewest tries.
    """

    techniques: list[Any]
    sizes: dict[str, Any]
    ranks: int
    same_data: int
    shard: int
    communicators: tuple[int, int]
    search: list[int]


MESHES = {
    "hybrid": Mesh([{"fsdp2": {"shard_within": 4}}], {"dp_size": 8}, 8, 1, 4, (1, 1), [4, 8, 12]),
    "resharded": Mesh([{"fsdp2": {"reshard_after_forward": 2}}], {"dp_size": 4}, 4, 1, 4, (0, 1), [2, 4, 6]),
    "layers": Mesh(LAYERS, {}, 2, 2, 1, (1, 0), [1, 2, 4]),
    "layers with experts": Mesh(LAYERS, {**MIXTURE, "ep_size": 1}, 2, 2, 1, (1, 0), [1, 2, 4]),
    "layers, rows": Mesh(["fsdp2", *LAYERS], {"dp_size": 3}, 6, 2, 3, (1, 1), [2, 4, 6, 8]),
    "sequences": Mesh(SEQUENCES, {"cp_size": 2}, 2, 2, 2, (1, 0), [1, 2, 3, 4, 6, 12]),
    "sequences, rows": Mesh(["fsdp2", *SEQUENCES], {"cp_size": 2, "dp_size": 3}, 6, 2, 6, (1, 1), [2, 4, 6]),
    "experts": Mesh(EXPERTS, MIXTURE, 2, 1, 2, (1, 0), [1, 2, 4, 8]),
    "experts, rows": Mesh(["fsdp2", *EXPERTS], {**MIXTURE, "dp_size": 4}, 4, 1, 4, (2, 1), [2, 4, 6]),
    "experts, one row": Mesh(["fsdp2", *EXPERTS], {**MIXTURE, "dp_size": 2}, 2, 1, 2, (2, 0), [2, 4, 6]),
    "shared experts": Mesh(SHARED, {**MIXTURE, "dp_size": 4}, 8, 2, 4, (3, 1), [4, 8, 12]),
    "whole experts": Mesh(WHOLE, {**MIXTURE, "ep_size": 4, "dp_size": 4}, 8, 2, 4, (2, 2), [4, 8, 12]),
    "stages": Mesh(["pipeline"], {"pp_size": 2}, 2, 2, 1, (1, 0), [1, 2, 3, 4, 6]),
    "stages, interleaved": Mesh(INTERLEAVED, {"pp_size": 2}, 2, 2, 1, (1, 0), [1, 2]),
    "stages, rows": Mesh(["pipeline", "fsdp2"], {"pp_size": 2, "dp_size": 3}, 6, 2, 3, (1, 1), [2, 4, 6, 8]),
    "layers and stages": Mesh(["tensor_parallel", "pipeline"], {"pp_size": 2}, 4, 4, 1, (2, 0), [4]),
    "all four": Mesh(FOUR, {"pp_size": 2, "cp_size": 2, "dp_size": 3}, 24, 8, 6, (3, 1), [8, 16, 24]),
}


@pytest.mark.parametrize("name", MESHES)
def test_sizes_of_a_mesh(name):
    mesh = MESHES[name]
    step = sharded(mesh.techniques, replace(WORKLOAD, **mesh.sizes))
    assert (step.ranks, step.same_data_ranks, step.shard_ranks) == (mesh.ranks, mesh.same_data, mesh.shard)
    of_two, of_more = mesh.communicators
    nccl_B = outside_allocator_B(step)["nccl_buffers"]
    assert nccl_B == of_two * NCCL_OF_TWO_B + of_more * NCCL_OF_MORE_B
    assert list(allowed_ranks(Subject(step, 80e9)))[: len(mesh.search)] == mesh.search


def test_ranks_that_share_data_take_the_same_sequences():
    for mesh in map(MESHES.get, ("layers, rows", "experts", "all four")):
        step = sharded(mesh.techniques, replace(WORKLOAD, **mesh.sizes))
        sequences = 8 * mesh.ranks // mesh.same_data  # eight micro-batches each
        assert [len(batches) for batches in text_updates(step, 2)] == [sequences, sequences]
        assert memory.tokens_per_step(Subject(step, 80e9)) == sequences * 2 * 24


def by_method(techniques, **sizes):
    subject = Subject(sharded(techniques, replace(WORKLOAD, **sizes)), 80e9)
    return {one.method: one for one in estimates(subject, memory.count_model(subject))}


@pytest.mark.parametrize(
    ("fewer", "more", "sizes", "states", "rule"),
    [
        ([], SEQUENCES, {"cp_size": 2}, 1, None),  # the rule says nothing of what is replicated
        ([], ["fsdp2", *SEQUENCES], {"cp_size": 2, "dp_size": 4}, 8, 8),
        ([], ["fsdp2", *EXPERTS], {**MIXTURE, "dp_size": 4}, 4, 4),
        (["pipeline"], ["pipeline", "fsdp2"], {"pp_size": 2, "dp_size": 4}, 4, 4),
        (["pipeline"], FOUR, {"pp_size": 2, "dp_size": 2, "cp_size": 2}, 8, 8),
    ],
    ids=str,
)
def test_formulas_divide_states_by_the_ranks_that_share_them(fewer, more, sizes, states, rule):
    plain, mesh = by_method(fewer, **sizes), by_method(more, **sizes)
    assert mesh["states_16"].peak_B == pytest.approx(plain["states_16"].peak_B / states)
    expected_B = None if rule is None else plain["rule_40x"].peak_B / rule
    assert mesh["rule_40x"].peak_B == (None if rule is None else pytest.approx(expected_B))


def test_attention_over_shared_sequences_makes_no_mask_on_cuda():
    """Bytes per layer of a longer sequence grow with its length, not with its square."""

    def peak_B(length):
        workload = replace(
            SMALL, seq_len=length, max_position_embeddings=2**14, micro_batch_size=1, cp_size=2,
            num_hidden_layers=2, gradient_accumulation_steps=1, optimizer="sgd_momentum",
        )  # fmt: skip
        step = sharded([*SEQUENCES, "attention", "mixed_precision"], workload)
        return dry_run(step, CUDA, reserved=False).peak_B

    shorter_B, longer_B, longest_B = map(peak_B, (2**12, 2**13, 2**14))
    assert longest_B - longer_B == pytest.approx(2 * (longer_B - shorter_B), rel=0.01)


def test_formulas_divide_activations_by_cp_size_and_experts_by_ep_size():
    def activations_B(estimated):
        return estimated["korthikanti"].peak_B - estimated["states_16"].peak_B

    plain, sequences = by_method([]), by_method(SEQUENCES, cp_size=2)
    assert activations_B(sequences) == pytest.approx(activations_B(plain) / 2)
    experts, shape = by_method(EXPERTS, **MIXTURE), replace(WORKLOAD, **MIXTURE).shape
    assert experts["states_16"].peak_B == 16 * (shape.parameters - shape.expert_parameters / 2)
    assert experts["rule_40x"].peak_B is None
