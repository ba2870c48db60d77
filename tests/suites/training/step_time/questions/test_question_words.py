"""What words of questions mean, and what is inferred where nothing was published."""

import pytest

from suites.training.step_time.questions.reader import asked_step
from suites.training.step_time.questions.words import (
    is_compiled,
    network_B_per_s,
    precision_of,
    program_of,
    recompute_of,
    shape_of_question,
    sharding_of,
)
from suites.training.step_time.rates.constants import StepConstants

LLAMA = {
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "mlp": "swiglu",
}


def question(**changed):
    layout = {"dp": 2, "tp": 2, "pp": 4, "micro_batch_size": 1, **changed.pop("layout", {})}
    return {
        "id": "one",
        "kind": "step",
        "framework": "NeMo",
        "model": LLAMA,
        "device": "h100_80gb",
        "gpus": 16,
        "gpus_per_node": 8,
        "network": None,
        "seq_len": 8192,
        "global_batch_size": 64,
        "precision": "bf16",
        "layout": layout,
        **changed,
    }


@pytest.mark.parametrize(
    ("framework", "program"),
    [
        ("nanotron", "nanotron"),
        ("Composer + FSDP", "composer"),
        ("Megatron Bridge", "megatron"),
        ("NeMo Megatron", "megatron"),
        ("torchtitan (FSDP2)", "torchtitan"),
        ("fms-fsdp", "torchtitan"),
        ("InternEvo", "deepspeed"),
        ("something new", "torchtitan"),
    ],
)
def test_frameworks(framework, program):
    assert program_of(framework) == program


@pytest.mark.parametrize(
    ("word", "stage"),
    [
        ("zero0", (0, 0)),
        ("ZeRO-2", (2, 0)),
        ("FULL_SHARD", (3, 0)),
        ("FSDP 64", (3, 0)),
        ("SHARD_GRAD_OP", (2, 0)),
        ("HYBRID_SHARD", (3, 8)),
        ("DDP + distributed optimizer", (1, 0)),
        ("distributed optimizer", (1, 0)),
        (None, (1, 0)),
    ],
)
def test_sharding(word, stage):
    assert sharding_of({"sharding": word}, "megatron", 8) == stage


@pytest.mark.parametrize(
    ("asked", "architecture", "precision"),
    [
        ({"precision": "bf16"}, "hopper", "bf16"),
        ({"precision": "FP8-CS"}, "hopper", "fp8"),
        ({"precision": "FP8-MX"}, "blackwell", "mxfp8"),
        ({"precision": "NVFP4"}, "blackwell", "nvfp4"),
        ({"precision": "FP8"}, "ampere", "bf16"),
        ({"precision": "bf16", "source": "mlperf gpt3"}, "hopper", "fp8"),
        ({"precision": "", "framework": "Megatron Bridge"}, "hopper", "fp8"),
        ({"precision": "", "framework": "torchtitan"}, "hopper", "bf16"),
    ],
)
def test_precision(asked, architecture, precision):
    assert precision_of(asked, architecture) == precision


@pytest.mark.parametrize(
    ("network", "rate"),
    [
        ("EFA 3.2 Tbit/s per node (p5)", 50e9),
        ("Storage: 2x 200Gb/s, Compute: 8x ConnectX-7 IB NDR 400Gb/s", 50e9),
        ("1x Ethernet 100Gb/Sec, 8x 200 Gbit/s", 25e9),
        (None, 50e9),
    ],
)
def test_network(network, rate):
    assert network_B_per_s({"network": network}, "hopper", 8) == rate


def test_recompute_and_compiling():
    assert [recompute_of({"recompute": word}) for word in (None, "none", "selective", "full")] == [
        None,
        0,
        1,
        2,
    ]
    assert is_compiled({"notes": "torch.compile on"})
    assert not is_compiled({"notes": "without compile"})


def test_mixtures_of_experts_have_the_parameters_that_their_authors_state():
    mixtral = shape_of_question(
        {**LLAMA, "vocab_size": 32000, "num_local_experts": 8, "num_experts_per_tok": 2}
    )
    assert mixtral.parameters == pytest.approx(46.7e9, rel=0.01)  # arXiv 2401.04088: 47 B, 13 B active
    assert mixtral.active_parameters == pytest.approx(12.9e9, rel=0.01)
    deepseek = shape_of_question(
        {
            "hidden_size": 7168,
            "num_hidden_layers": 61,
            "num_attention_heads": 128,
            "intermediate_size": 18432,
            "vocab_size": 129280,
            "n_routed_experts": 256,
            "num_experts_per_tok": 8,
            "n_shared_experts": 1,
            "moe_intermediate_size": 2048,
            "first_k_dense_replace": 3,
            "q_lora_rank": 1536,
            "kv_lora_rank": 512,
            "qk_rope_head_dim": 64,
            "qk_nope_head_dim": 128,
            "v_head_dim": 128,
        }
    )
    assert deepseek.parameters == pytest.approx(671e9, rel=0.001)  # arXiv 2412.19437: 671 B, 37 B active
    assert deepseek.active_parameters == pytest.approx(37e9, rel=0.03)


def test_what_was_not_published_is_inferred():
    asked = asked_step(question(), StepConstants.read())
    assert asked.layouts.micro_batches[0] == 64 / 2  # the batch over dp and micro-batch
    assert asked.layouts.virtual_stages[0] == 4  # eight layers per rank, two per stage
    assert asked.layouts.zero[0] == 1
    assert not asked.recompute_known


def test_micro_batches_that_make_half_of_the_batch_are_two_steps():
    asked = asked_step(question(layout={"gradient_accumulation_steps": 16}), StepConstants.read())
    assert asked.batches[0] == 2


def test_a_device_like_no_other_is_not_known():
    assert asked_step(question(device="tpu_v5p"), StepConstants.read()) is None
