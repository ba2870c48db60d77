"""However ranks share a step, they see the losses and gradients of one device, and take the predicted bytes.

For values, ranks are real processes that meet over gloo. Each takes sequences of its own where the technique
spreads data, and plain PyTorch takes all of them. For bytes, the real step is one rank of a fake process
group: its tensors are real, and only what other ranks would send is missing. Rows whose name begins with
"long" run in `make long`.
"""

from contextlib import ExitStack
from dataclasses import replace

import pytest
import torch
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
from suites.training.techniques import build_step
from suites.training.trainer import build_model

FSDP, CONTEXT, EXPERT, TENSOR, STAGED = (
    "fsdp2",
    "context_parallel",
    "expert_parallel",
    "tensor_parallel",
    "pipeline",
)
BY_SEQUENCE = {"tensor_parallel": {"sequence_parallel": True}}
INTERLEAVED = {"pipeline": {"stages_per_rank": 2}}
RESHARDED = {"fsdp2": {"reshard_after_forward": True, "head": "apart"}}
LAST = {"reduce_every_micro_batch": False}
IN_ROWS_ON_HOST = {"fsdp2": {"shard_within": 2, "cpu_offload": True}}
FLASH, FULL = "attention", "activation_checkpointing"
ALL = ["mixed_precision", FLASH, FULL]
SHARED = [FSDP, EXPERT, TENSOR]
BY_SEQ_SHARED = [FSDP, EXPERT, BY_SEQUENCE]
WHOLE = [FSDP, {"expert_parallel": {"expert_tensor_parallel": False}}, BY_SEQUENCE]
ZERO1, ZERO2, ZERO3 = ({"zero": {"stage": stage}} for stage in (1, 2, 3))

EVEN = replace(TINY, seq_len=16, cp_size=2)
EVEN_18 = replace(TINY, seq_len=18)
ONCE = replace(CLIPPED, seq_len=16, gradient_accumulation_steps=1)
STAGES = replace(CLIPPED, seq_len=16, num_hidden_layers=4, pp_size=2)
PIPELINE = replace(TINY, num_hidden_layers=4, pp_size=2, gradient_accumulation_steps=3)
PIPELINE_CLIPPED = replace(PIPELINE, gradient_accumulation_steps=4, max_grad_norm=0.05)
UNBIASED = replace(GPT, bias=False)

LEARNED = replace(
    UNBIASED, num_hidden_layers=4, pp_size=2, gradient_accumulation_steps=2, tie_word_embeddings=False
)
MOE = replace(
    TINY,
    num_experts=4,
    num_experts_per_tok=2,
    moe_intermediate_size=24,
    shared_expert_intermediate_size=16,
    ep_size=2,
    seq_len=16,
    gradient_accumulation_steps=1,
)
MOE_CLIPPED = replace(MOE, max_grad_norm=0.05)
MOE_TWICE = replace(MOE_CLIPPED, gradient_accumulation_steps=2)
MOE_STAGES = replace(MOE_TWICE, num_hidden_layers=4, pp_size=2)
MOE_4 = replace(MOE, dp_size=4, ep_size=4)


def row(ranks, techniques, workload, **changes):
    return ranks, techniques, replace(workload, **changes)


ROWS = {
    "fsdp1, reduced last": row(2, [{"fsdp1": {**LAST, "strategy": "shard_grad_op"}}], CLIPPED),
    "fsdp2": row(2, [FSDP], TINY),
    "fsdp2, clipped": row(2, [FSDP], CLIPPED),
    "zero1, clipped": row(2, [ZERO1], CLIPPED, gradient_accumulation_steps=1),
    "zero2": row(2, [ZERO2], TINY, gradient_accumulation_steps=1),
    "zero3, clipped": row(2, [ZERO3], CLIPPED),
    "sequences": row(2, [CONTEXT], EVEN),
    "sequences in rows, on the host": row(
        4, [CONTEXT, IN_ROWS_ON_HOST, "mixed_precision", {"loss": {"chunks": 2}}], EVEN
    ),
    "layers": row(4, [TENSOR], TINY, num_key_value_heads=4, tp_size=4),
    "layers by sequence, sharded": row(4, [FSDP, BY_SEQUENCE], CLIPPED, seq_len=18),
    "stages": row(2, [STAGED], PIPELINE),
    "stages, interleaved": row(2, [INTERLEAVED], PIPELINE_CLIPPED),
    "stages, sharded": row(4, [STAGED, FSDP], PIPELINE, max_grad_norm=0.05),
    "sequences and stages, learned": row(
        4, [FSDP, CONTEXT, STAGED], LEARNED, seq_len=16, cp_size=2, dp_size=1
    ),
    "experts": row(2, [EXPERT], MOE, dp_size=4, gradient_accumulation_steps=2),
    "experts, sharded": row(4, [FSDP, EXPERT], MOE_TWICE, dp_size=4),
    "layers with experts": row(2, [TENSOR], MOE, num_experts_per_tok=3),
    "shared experts, no MLP": row(4, SHARED, MOE, shared_expert_intermediate_size=None),
    "whole experts": row(4, WHOLE, MOE_CLIPPED, ep_size=4, optimizer="adamw"),
    "long, fsdp1, clipped": row(3, ["fsdp1"], CLIPPED, dp_size=3),
    "long, layers and sequences": row(4, [FSDP, TENSOR, CONTEXT], ONCE, cp_size=2, dp_size=1),
    "long, experts along sequences": row(
        4, [FSDP, EXPERT, CONTEXT, FLASH], MOE_CLIPPED, cp_size=2, ep_size=4
    ),
    "long, sequences, fp32 grads": row(2, [CONTEXT, {"mixed_precision": {"gradients": "fp32"}}], EVEN),
    "long, sequences, four": row(4, [CONTEXT, FLASH, FULL], EVEN, cp_size=4, max_grad_norm=0.05),
    "long, sequences, reduced last": row(4, [CONTEXT, {"fsdp2": LAST}], EVEN),
    "long, sequences, per operation": row(2, [CONTEXT, FLASH, {FULL: {"mode": "per_op"}}], EVEN),
    "long, sequences, learned": row(4, [FSDP, CONTEXT, FLASH], UNBIASED, seq_len=16, cp_size=2),
    "long, layers, clipped": row(2, [TENSOR], CLIPPED),
    "long, layers, learned": row(4, [FSDP, TENSOR], UNBIASED),
    "long, layers by sequence, all": row(4, [FSDP, BY_SEQUENCE, *ALL], EVEN_18),
    "long, layers by sequence, head apart": row(
        4, [BY_SEQUENCE, {"fsdp2": {**LAST, "head": "apart"}}], EVEN_18
    ),
    "long, layers by sequence": row(4, [BY_SEQUENCE], CLIPPED, seq_len=16, num_key_value_heads=4, tp_size=4),
    "long, stages, learned": row(2, [STAGED], LEARNED, gradient_accumulation_steps=3, max_grad_norm=0.05),
    "long, stages, interleaved, all": row(2, [INTERLEAVED, *ALL], PIPELINE, gradient_accumulation_steps=2),
    "long, stages, resharded": row(4, [STAGED, RESHARDED], LEARNED, num_hidden_layers=2),
    "long, stages, interleaved, sharded, all": row(
        4, [INTERLEAVED, FSDP, *ALL], PIPELINE, gradient_accumulation_steps=4
    ),
    "long, three ways": row(8, [FSDP, BY_SEQUENCE, CONTEXT, STAGED, FLASH], STAGES, cp_size=2, dp_size=1),
    "long, layers and stages": row(4, [TENSOR, STAGED], STAGES),
    "long, layers and sequences, flash": row(8, [FSDP, BY_SEQUENCE, CONTEXT, FLASH], ONCE, cp_size=2),
    "long, layers, stages, all": row(8, [FSDP, BY_SEQUENCE, INTERLEAVED, *ALL], STAGES, max_grad_norm=None),
    "long, layers and stages, sharded": row(8, [FSDP, TENSOR, STAGED], STAGES),
    "long, sequences and stages": row(8, [FSDP, CONTEXT, STAGED], STAGES, cp_size=2),
    "long, experts, odd": row(4, [EXPERT, FULL], MOE_4, micro_batch_size=3, seq_len=17),
    "long, experts, AdamW": row(
        2, [EXPERT], MOE_CLIPPED, dp_size=4, optimizer="adamw", optimizer_impl="foreach"
    ),
    "long, experts, one row": row(2, [FSDP, EXPERT], MOE),
    "long, experts, resharded": row(
        4, [EXPERT, RESHARDED], MOE_4, shared_expert_intermediate_size=None, num_experts_per_tok=1
    ),
    "long, experts, more ranks than they": row(8, [FSDP, EXPERT], MOE_CLIPPED, dp_size=8),
    "long, experts and stages": row(8, [FSDP, EXPERT, STAGED], MOE_STAGES, dp_size=4),
    "long, experts, stages, sequences": row(
        8, [FSDP, EXPERT, STAGED, CONTEXT, FLASH, FULL], MOE_STAGES, cp_size=2
    ),
    "long, layers with experts, checkpointed": row(2, [BY_SEQUENCE, FULL], MOE_TWICE),
    "long, layers with experts, sharded": row(4, [FSDP, BY_SEQUENCE], MOE_CLIPPED),
    "long, layers with experts, stages": row(4, [BY_SEQUENCE, STAGED], MOE_STAGES),
    "long, shared experts": row(4, BY_SEQ_SHARED, MOE_TWICE),
    "long, shared experts, by rows": row(8, BY_SEQ_SHARED, MOE_CLIPPED, num_experts=2, dp_size=4),
    "long, shared experts, stages, sequences": row(
        8, [*BY_SEQ_SHARED, CONTEXT, STAGED], MOE_STAGES, cp_size=2, dp_size=1
    ),
    "long, whole experts of one layer's ranks": row(4, WHOLE, MOE),
    "long, whole experts, copies": row(8, WHOLE, MOE_CLIPPED, ep_size=4, dp_size=4),
    "long, whole experts, odd width": row(
        4, WHOLE, MOE, ep_size=4, moe_intermediate_size=23, shared_expert_intermediate_size=None
    ),
    "long, whole experts, stages": row(8, [*WHOLE, STAGED], MOE_STAGES, ep_size=4),
}

BIASES = {
    "biases, fsdp2": row(2, [FSDP], GPT),
    "long, biases, fsdp1": row(2, ["fsdp1"], GPT),
    "long, biases, zero3": row(2, [ZERO3], GPT),
    "long, biases, layers": row(2, [TENSOR], GPT),
    "long, biases, layers by sequence": row(4, [FSDP, BY_SEQUENCE], GPT, seq_len=18),
}
"""A key's bias has no gradient but rounding, which is not compared with itself: softmax ignores it."""

LOSSES_ALONE = {
    "zero1, accumulated": row(2, [ZERO1], CLIPPED),
    "zero2, accumulated": row(2, [ZERO2], TINY),
    "experts": row(4, [FSDP, EXPERT, *ALL], MOE, dp_size=4),
    "whole experts": row(4, [*WHOLE, *ALL], MOE),
    "long, experts": row(2, [EXPERT, *ALL], MOE, dp_size=4),
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
    experts = {} if workload.num_experts is None else {"moe_intermediate_size": 96}
    length = 4 * (workload.seq_len // 4) * 4
    return replace(
        workload,
        hidden_size=128,
        intermediate_size=336,
        vocab_size=1000,
        seq_len=length,
        max_position_embeddings=length,
        optimizer="adamw",
        **experts,
    )


@pytest.mark.parametrize("name", ROWS)
def test_the_dry_run_of_a_rank_equals_what_real_tensors_take(name):
    _, techniques, workload = ROWS[name]
    step = sharded(techniques, enlarged(workload))
    for rank in ranks_to_run(step):
        dry, measured_B = dry_and_measured(step, steady_steps=2, rank=rank)
        assert dry.rank == rank
        assert dry.peak_B == pytest.approx(measured_B, rel=1e-4)
        if rank == 0 and has_shards_of_parameters(step):
            assert dry.by_kind_B["parameters"] == parameters_of_rank_B(step)


def has_shards_of_parameters(step):
    """Return whether the device has parameters in fp32, each for itself."""
    narrow = step.features.precision not in ("fp32", "autocast")
    flat = {"fsdp1", "zero"} & dict(step.techniques).keys()
    return not (narrow or flat) and step.features.parameters_on == "device"


CUT = ("token_embedding", "attention.", "mlp.", "head")
SUMMED = ("output.bias", "down.bias", "router.weight")
"""What tensor parallelism cuts, and what of it it leaves whole: ranks add up those results."""


def parameters_of_rank_B(step):
    """Return the bytes of parameters and buffers that rank 0 has, parameter by parameter."""
    with torch.device("meta"):
        model = build_model(build_step(step.given, ()))
    layers = step.workload.num_hidden_layers // step.pipeline_ranks  # all of the same size
    in_stage = tuple(f"blocks.{layer}." for layer in range(layers))
    total_B = sum(one.nbytes for one in model.buffers())
    for name, parameter in model.named_parameters():
        if step.stages > 1 and not name.startswith(("token_embedding", "position_embedding", *in_stage)):
            continue
        ways = step.shard_ranks if "zero3" in step.features.sharding else 1
        if step.features.sharding == "expert" and "experts" in name:
            ways = step.expert_ranks
        if any(part in name for part in CUT) and not name.endswith(SUMMED):
            ways *= step.tensor_ranks
        assert parameter.nbytes % ways == 0, name
        row_B = parameter.nbytes // len(parameter) if "router" in name else 0  # of fewer rows than ranks
        total_B += max(parameter.nbytes // ways, row_B)
    return total_B


KEEP_LAST = {"fsdp2": {"keep_last_block": True}}
ON_HOST = {"fsdp2": {"cpu_offload": True}}
PREFETCHED = {"activation_offload": {"prefetch": True}}
BF16 = {"mixed_precision": {"gradients": "bf16"}}

SMALL_ONCE = replace(SMALL, gradient_accumulation_steps=1)
FOUR = replace(SMALL_ONCE, dp_size=4)
ODD = replace(SMALL_ONCE, dp_size=3, hidden_size=120, intermediate_size=252, vocab_size=501)
NARROW = replace(SMALL, dp_size=3, hidden_size=64, intermediate_size=251, vocab_size=501, max_grad_norm=1.0)
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
    "fsdp2, odd sizes": ([FSDP], replace(ODD, intermediate_size=251)),
    "fsdp1, odd sizes, tied": (["fsdp1"], TIED),
    "fsdp2, kept gathered": ([{"fsdp2": {"reshard_after_forward": False, "head": "apart"}}, *ALL], FOUR),
    "fsdp2, last block kept": ([KEEP_LAST, "mixed_precision"], FOUR),
    "layers, odd vocabulary, tied": ([TENSOR], replace(WIDE_GPT, vocab_size=1001, tp_size=4)),
    "zero2, odd sizes, clipped": ([ZERO2], NARROW),
    "zero3, mixed, odd": ([ZERO3, "mixed_precision", FLASH], ODD_GPT),
    "fsdp2, clipped, foreach": ([FSDP], FOREACH),
    "shared experts, odd": (BY_SEQ_SHARED, replace(ODD_MOE, moe_intermediate_size=94)),
    "layers by sequence, tied": ([FSDP, BY_SEQUENCE], replace(WIDE_GPT, seq_len=18)),
    "stages, odd sizes": ([STAGED, FSDP], ODD_STAGES),
    "activations on the host": ([PREFETCHED], FOUR),
    "8-bit moments": ([FSDP, {"optimizer": {"name": "adamw_8bit"}}], replace(FOUR, seq_len=8)),
    "DoRA": ([{"lora": {"dora": True}}, FSDP, "mixed_precision"], FOUR),
    "adapters in flat parameters": ([ALL_BF16, {"fsdp1": LAST}], replace(SMALL, dp_size=3)),
    "states on the host": ([ON_HOST, "lora", "mixed_precision", FLASH], FOUR),
    "stages, the middle one": ([STAGED, FLASH, BF16], replace(FOREACH, pp_size=3, mlp="gelu")),
    "long, fsdp2, tied, learned": ([FSDP], replace(TIED, norm="layer", position="learned")),
    "long, zero1, odd sizes": ([ZERO1], NARROW),
    "long, DoRA, zero3": ([{"lora": {"dora": True}}, "zero"], replace(FOUR, hidden_size=512)),
}
"""DoRA's norm reads full weights, of which deepspeed gathers those above 100,000 elements."""


@pytest.mark.parametrize("name", OTHER_SIZES)
def test_so_it_does_with_odd_sizes_and_other_techniques(name):
    step = sharded(*OTHER_SIZES[name])
    for rank in ranks_to_run(step):
        dry, measured_B = dry_and_measured(step, steady_steps=2, rank=rank)
        assert dry.peak_B == pytest.approx(measured_B, rel=1e-4)


@pytest.mark.parametrize(
    "name",
    [
        "stages",
        "experts",
        "long, stages, interleaved, all",
        "long, experts, one row",
        "long, shared experts",
        "long, whole experts, copies",
    ],
)
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


@pytest.mark.parametrize(
    ("techniques", "layers"), [([RESHARDED], 6), (SHARED, 8)], ids=["resharded", "experts"]
)
def test_few_layers_determine_the_rest(techniques, layers):
    """Other techniques are among the hundred recipes."""
    workload = enlarged(MOE) if EXPERT in techniques else SMALL_ONCE
    step = sharded(techniques, replace(workload, num_hidden_layers=layers, dp_size=4))
    assert dry_run(step, HOST) == dry_run(step, HOST, full=True)
