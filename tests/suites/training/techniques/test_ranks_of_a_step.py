"""However ranks share a step, they see the losses and gradients of one device, and take the predicted bytes.

For values, ranks are real processes that meet over gloo. Each takes sequences of its own where the technique
spreads data, and plain PyTorch takes all of them. For bytes, the real step is one rank of a fake process
group: its tensors are real, and only what other ranks would send is missing. Rows whose name begins with
"long" run in `make long`.
"""

from contextlib import ExitStack
from dataclasses import replace

import pytest
from offload_ranks import Pools
from real_ranks import CLIPPED, GPT, HOST, SMALL, TINY, dry_and_measured, sharded

from harness.records import WrongResult
from suites.training import on_rank
from suites.training.correctness import (
    UPDATES_ON_RANKS,
    check_on_ranks,
    compare,
    mean_over_ranks,
    plain_losses,
    text_updates,
)
from suites.training.dry_run.dry_run import Device, dry_run, ranks_to_run

FSDP, CONTEXT, EXPERT = "fsdp2", "context_parallel", "expert_parallel"
TENSOR, STAGED = "tensor_parallel", "pipeline"
BY_SEQUENCE = {"tensor_parallel": {"sequence_parallel": True}}
INTERLEAVED = {"pipeline": {"stages_per_rank": 2}}
LAST = {"reduce_every_micro_batch": False}
IN_ROWS_ON_HOST = {"fsdp2": {"shard_within": 2, "cpu_offload": True}}
FLASH, FULL = "attention", "activation_checkpointing"
ALL = ["mixed_precision", FLASH, FULL]
BY_SEQ_SHARED = [FSDP, EXPERT, BY_SEQUENCE]
WHOLE = [FSDP, {"expert_parallel": {"expert_tensor_parallel": False}}, BY_SEQUENCE]
ZERO1, ZERO2, ZERO3 = ({"zero": {"stage": stage}} for stage in (1, 2, 3))

EVEN = replace(TINY, seq_len=16, cp_size=2)
EVEN_18 = replace(TINY, seq_len=18)
STAGES = replace(CLIPPED, seq_len=16, num_hidden_layers=4, pp_size=2)
PIPELINE = replace(TINY, num_hidden_layers=4, pp_size=2, gradient_accumulation_steps=3)
PIPELINE_CLIPPED = replace(PIPELINE, gradient_accumulation_steps=4, max_grad_norm=0.05)

EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "ep_size": 2}
MOE = replace(TINY, **EXPERTS, shared_expert_intermediate_size=16, seq_len=16, gradient_accumulation_steps=1)
MOE_CLIPPED = replace(MOE, max_grad_norm=0.05)
MOE_TWICE = replace(MOE_CLIPPED, gradient_accumulation_steps=2)
MOE_STAGES = replace(MOE_TWICE, num_hidden_layers=4, pp_size=2)


def row(ranks, techniques, workload, **changes):
    return ranks, techniques, replace(workload, **changes)


ROWS = {
    "fsdp1, reduced last": row(2, [{"fsdp1": {**LAST, "strategy": "shard_grad_op"}}], CLIPPED),
    "fsdp2, clipped": row(2, [FSDP], CLIPPED),
    "zero1, clipped": row(2, [ZERO1], CLIPPED, gradient_accumulation_steps=1),
    "sequences": row(2, [CONTEXT], EVEN),
    "zero3, clipped": row(2, [ZERO3], CLIPPED),
    "sequences in rows, on the host": row(
        4, [CONTEXT, IN_ROWS_ON_HOST, "mixed_precision", {"loss": {"chunks": 2}}], EVEN
    ),
    "layers": row(2, [TENSOR], TINY),
    "layers by sequence, sharded": row(4, [FSDP, BY_SEQUENCE], CLIPPED, seq_len=18),
    "stages": row(2, [STAGED], PIPELINE),
    "stages, interleaved": row(2, [INTERLEAVED], PIPELINE_CLIPPED),
    "stages, sharded": row(4, [STAGED, FSDP], PIPELINE, max_grad_norm=0.05),
    "experts": row(2, [EXPERT], MOE, dp_size=4, gradient_accumulation_steps=2),
    "whole experts": row(4, WHOLE, MOE_CLIPPED, ep_size=4, optimizer="adamw"),
    "layers with experts": row(2, [TENSOR], MOE, num_experts_per_tok=3),
    "long, experts, sharded": row(4, [FSDP, EXPERT], MOE_TWICE, dp_size=4),
    "long, fsdp1, clipped": row(3, ["fsdp1"], CLIPPED, dp_size=3),
    "long, sequences, four": row(4, [CONTEXT, FLASH, FULL], EVEN, cp_size=4, max_grad_norm=0.05),
    "long, layers by sequence, all": row(4, [FSDP, BY_SEQUENCE, *ALL], EVEN_18),
    "long, three ways": row(8, [FSDP, BY_SEQUENCE, CONTEXT, STAGED, FLASH], STAGES, cp_size=2, dp_size=1),
    "long, experts, more ranks than they": row(8, [FSDP, EXPERT], MOE_CLIPPED, dp_size=8),
    "long, experts, stages, sequences": row(
        8, [FSDP, EXPERT, STAGED, CONTEXT, FLASH, FULL], MOE_STAGES, cp_size=2
    ),
    "long, shared experts": row(4, BY_SEQ_SHARED, MOE_TWICE),
    "long, whole experts, copies": row(8, WHOLE, MOE_CLIPPED, ep_size=4, dp_size=4),
}

BIASES = {
    "biases, fsdp2": row(2, [FSDP], GPT),
    "long, biases, zero3": row(2, [ZERO3], GPT),
    "long, biases, layers by sequence": row(4, [FSDP, BY_SEQUENCE], GPT, seq_len=18),
}
"""A key's bias has no gradient but rounding, which is not compared with itself: softmax ignores it."""

LOSSES_ALONE = {
    "zero1, accumulated": row(2, [ZERO1], CLIPPED),
    "zero2, accumulated": row(2, [ZERO2], TINY),
    "whole experts": row(4, [*WHOLE, *ALL], MOE),
    "long, experts": row(4, [FSDP, EXPERT, *ALL], MOE, dp_size=4),
    "long, shared experts": row(4, [*BY_SEQ_SHARED, *ALL], MOE),
}
"""In bf16 rounding decides which expert a token takes; deepspeed's stages 1 and 2 show no gradients of
several micro-batches."""


@pytest.fixture(scope="module")
def pools():
    with ExitStack() as stack:
        yield Pools(stack)


def call_of(pools, ranks):
    """Return the call of a function, of `on_rank` where it names no module, on that many real ranks."""

    def call(function, **given):
        function = function if ":" in function else f"{on_rank.__name__}:{function}"
        return pools.pool(ranks).call(function, **given)

    return call


def checked(call, step):
    call("make", key="ours", step=step.described)
    try:
        return check_on_ranks(step, call, "ours")
    finally:
        call("drop", key="ours")


@pytest.mark.parametrize("name", [*ROWS, *BIASES])
def test_ranks_see_the_losses_and_gradients_of_one_device(name, pools):
    ranks, techniques, workload = (ROWS | BIASES)[name]
    step = sharded(techniques, workload)
    assert step.ranks == ranks
    assert checked(call_of(pools, ranks), step) <= step.contract.relative


@pytest.mark.parametrize("name", LOSSES_ALONE)
def test_they_see_its_losses_where_gradients_are_not_compared(name, pools):
    ranks, techniques, workload = LOSSES_ALONE[name]
    step, call = sharded(techniques, workload), call_of(pools, ranks)
    call("make", key="ours", step=step.described)
    ours = mean_over_ranks(call("updates", key="ours", count=UPDATES_ON_RANKS))
    call("drop", key="ours")
    assert step.ranks == ranks
    compare(ours, plain_losses(step, text_updates(step, UPDATES_ON_RANKS)), step.contract.relative)


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("stages", {"times": 3.0, "apart": False}),
        ("layers by sequence, sharded", {"times": 1.0, "apart": True}),
    ],
    ids=["gradients of every rank", "parameters of one rank"],
)
def test_a_wrong_rank_is_caught(name, wrong, pools):
    ranks, techniques, workload = ROWS[name]
    call = call_of(pools, ranks)
    call("wrong_on_ranks:spoil", **wrong)
    try:
        with pytest.raises(WrongResult, match="off by"):
            checked(call, sharded(techniques, workload))
    finally:
        call("wrong_on_ranks:mend")


def enlarged(workload):
    """Return the workload with tensors so large that what a dry run misses shows as a share of the peak."""
    sizes = {"hidden_size": 128, "intermediate_size": 336, "vocab_size": 1000, "optimizer": "adamw"}
    if workload.num_experts is not None:
        sizes["moe_intermediate_size"] = 96
    length = 4 * (workload.seq_len // 4) * 4
    return replace(workload, **sizes, seq_len=length, max_position_embeddings=length)


@pytest.mark.parametrize("name", ROWS)
def test_the_dry_run_of_a_rank_equals_what_real_tensors_take(name):
    _, techniques, workload = ROWS[name]
    step = sharded(techniques, enlarged(workload))
    for rank in ranks_to_run(step):
        dry, measured_B = dry_and_measured(step, steady_steps=2, rank=rank)
        assert dry.rank == rank
        assert dry.peak_B == pytest.approx(measured_B, rel=1e-4)


KEEP_LAST = {"fsdp2": {"keep_last_block": True}}
ON_HOST = {"fsdp2": {"cpu_offload": True}}
PREFETCHED = {"activation_offload": {"prefetch": True}}

SMALL_ONCE = replace(SMALL, gradient_accumulation_steps=1)
FOUR = replace(SMALL_ONCE, dp_size=4)
ODD = replace(SMALL_ONCE, dp_size=3, hidden_size=120, intermediate_size=252, vocab_size=501)
FEW_ROWS = replace(SMALL, dp_size=8, vocab_size=5, seq_len=7, micro_batch_size=1)
FOREACH = replace(SMALL, max_grad_norm=1.0, optimizer_impl="foreach", gradient_accumulation_steps=3)
TIED = replace(ODD, tie_word_embeddings=True, bias=True)
WIDE_GPT = replace(GPT, hidden_size=128, intermediate_size=512, vocab_size=1000, optimizer_impl="foreach")
ODD_STAGES = replace(ODD, num_hidden_layers=4, pp_size=2, gradient_accumulation_steps=4)
ODD_GPT = replace(FOUR, mlp="gelu", intermediate_size=335, bias=True)
ODD_MOE = replace(enlarged(MOE), num_experts=6, ep_size=3, dp_size=6, hidden_size=120)

ALL_BF16 = {"lora": {"base": "bf16", "adapter_dtype": "bf16"}}

OTHER_SIZES = {
    "fsdp2, fewer rows than ranks": ([FSDP, *ALL], FEW_ROWS),
    "fsdp1, odd sizes, tied": (["fsdp1"], TIED),
    "fsdp2, kept gathered": ([{"fsdp2": {"reshard_after_forward": False, "head": "apart"}}, *ALL], FOUR),
    "fsdp2, last block kept": ([KEEP_LAST, "mixed_precision"], FOUR),
    "layers, odd vocabulary, tied": ([TENSOR], replace(WIDE_GPT, vocab_size=1001, tp_size=4)),
    "zero3, mixed, odd": ([ZERO3, "mixed_precision", FLASH], ODD_GPT),
    "fsdp2, clipped, foreach": ([FSDP], FOREACH),
    "shared experts, odd": (BY_SEQ_SHARED, replace(ODD_MOE, moe_intermediate_size=94)),
    "stages, odd sizes": ([STAGED, FSDP], ODD_STAGES),
    "activations on the host": ([PREFETCHED], FOUR),
    "8-bit moments": ([FSDP, {"optimizer": {"name": "adamw_8bit"}}], replace(FOUR, seq_len=8)),
    "DoRA": ([{"lora": {"dora": True}}, FSDP, "mixed_precision"], FOUR),
    "adapters in flat parameters": ([ALL_BF16, {"fsdp1": LAST}], replace(SMALL, dp_size=3)),
    "states on the host": ([ON_HOST, "lora", "mixed_precision", FLASH], FOUR),
    "long, DoRA, zero3": ([{"lora": {"dora": True}}, "zero"], replace(FOUR, hidden_size=512)),
}
"""DoRA's norm reads full weights, of which deepspeed gathers those above 100,000 elements."""


@pytest.mark.parametrize("name", OTHER_SIZES)
def test_so_it_does_with_odd_sizes_and_other_techniques(name):
    step = sharded(*OTHER_SIZES[name])
    for rank in ranks_to_run(step):
        dry, measured_B = dry_and_measured(step, steady_steps=2, rank=rank)
        assert dry.peak_B == pytest.approx(measured_B, rel=1e-4)


@pytest.mark.parametrize("name", ["stages", "experts", "long, shared experts", "long, whole experts, copies"])
def test_it_equals_what_ranks_take_that_exchange_values(name, pools):
    """With equal shares of the tokens for each expert; a thread may still have the counts of rows."""
    ranks, techniques, workload = ROWS[name]
    step = sharded(techniques, enlarged(workload))

    def measured_B(routing):
        function = "routed_on_rank:second_step_B"
        return pools.pool(ranks).call(function, step=step.described, routing=routing)

    device = Device("host", measured=True, gloo=True)
    dry_B = [dry_run(step, device, full=True, rank=rank).peak_B for rank in range(step.pipeline_ranks)]
    if workload.num_experts is None:
        assert dry_B == pytest.approx(measured_B("own"), rel=1e-4)
    else:
        assert dry_B == pytest.approx([max(measured_B("even"))], rel=3e-4 if step.tensor_ranks > 1 else 1e-4)
    if name == "experts":
        assert dry_B[0] < max(measured_B("own")) < max(measured_B("first"))


@pytest.mark.parametrize("views", [False, True])
def test_real_ranks_of_ddp_take_what_a_dry_run_of_one_does(views, pools):
    workload = replace(WIDE_GPT, num_hidden_layers=3, intermediate_size=300, tp_size=1)
    step = sharded([{"ddp": {"gradient_as_bucket_view": views}}], workload)
    each_B = call_of(pools, 2)("peak_memory", step=step.described)
    assert each_B == pytest.approx([dry_run(step, HOST).peak_B] * 2, rel=0.0025)
