"""Published rows as questions: what words mean, and what is inferred where nothing was published."""

import pytest

from suites.training.layouts.shape_of_config import shape_without_type
from suites.training.of_question import published_steps
from suites.training.step_time.published import typed
from suites.training.step_time.published.typed import (
    config_of_sizes,
    is_compiled,
    network_B_per_s,
    precision_of,
    recompute_of,
    sharding_of,
    typed_step,
)
from suites.training.step_time.questions import answers, question_of_row

LLAMA = {
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "mlp": "swiglu",
}


def shape_of(model):
    return shape_without_type(config_of_sizes(model))


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
    assert typed.program_of({"framework": framework}) == program


@pytest.mark.parametrize(
    ("word", "stage"),
    [
        ("zero0", (0, False)),
        ("ZeRO-2", (2, False)),
        ("FULL_SHARD", (3, False)),
        ("FSDP 64", (3, False)),
        ("SHARD_GRAD_OP", (2, False)),
        ("HYBRID_SHARD", (3, True)),
        ("DDP + distributed optimizer", (1, False)),
        ("distributed optimizer", (1, False)),
        (None, (1, False)),
    ],
)
def test_sharding(word, stage):
    assert sharding_of(word, "megatron") == stage


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
        ("16x EFA per node (6.4 Tb/s)", 100e9),
        ("4x 200 Gbps RDMA per node (README)", 12.5e9),
        ("8x HDR InfiniBand per node", 25e9),
        ("Slingshot/CXI", 25e9),
        (None, 50e9),
    ],
)
def test_network(network, rate):
    assert network_B_per_s({"network": network}, "hopper", 8) == rate


def test_recompute_and_compiling():
    words = (None, "none", "selective", "full", "1/2 of the layers")
    assert [recompute_of(word) for word in words] == [None, "none", "selective", "full", "selective"]
    assert is_compiled({"notes": "torch.compile on"})
    assert not is_compiled({"notes": "without compile"})


def test_mixtures_of_experts_have_the_parameters_that_their_authors_state():
    mixtral = shape_of({**LLAMA, "vocab_size": 32000, "num_local_experts": 8, "num_experts_per_tok": 2})
    assert mixtral.parameters == pytest.approx(46.7e9, rel=0.01)  # arXiv 2401.04088: 47 B, 13 B active
    assert mixtral.active_parameters == pytest.approx(12.9e9, rel=0.01)
    deepseek = shape_of(
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
    steps = published_steps(typed_step(question()))
    assert steps.layouts.micro_batches[0] == 64 / 2  # the batch over dp and micro-batch
    assert steps.layouts.virtual_stages[0] == 4  # eight layers per rank, two per stage
    assert steps.layouts.zero[0] == 1
    assert not steps.recompute_known


def test_micro_batches_that_make_half_of_the_batch_are_two_steps():
    assert published_steps(typed_step(question(layout={"gradient_accumulation_steps": 16}))).batches[0] == 2


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"device": "tpu_v5p"}, "device 'tpu_v5p': conf/hardware has no GPU like it"),
        (
            {"model": {"name": "unnamed", "num_hidden_layers": 2}},
            "model: its hidden_size, num_attention_heads is",
        ),
        ({"model": {**LLAMA, "name": "Nemotron-H 56B"}}, "layers other than attention and MLP"),
    ],
)
def test_what_is_not_known_has_a_reason(changed, reason):
    with pytest.raises(ValueError, match="^" + "model|device") as refused:
        typed_step(question(**changed))
    assert reason in str(refused.value)
    assert "\n" not in str(refused.value)
    assert answers([question(**changed)]) == [{"id": "one", "step_s": None}]


RUN = {
    "id": "0", "kind": "pretrain", "framework": "Megatron-LM", "model": "GPT 18B", "gpus": 256,
    "gpus_per_node": 8, "device": "A100 80GB", "network": "8x HDR InfiniBand per node", "date": "2021-04",
    "shape": {"hidden_size": 6144, "num_hidden_layers": 40, "num_attention_heads": 48, "experts": None,
              "num_key_value_heads": 48, "intermediate_size": 24576, "vocab_size": 51200},
    "seq_len": 2048, "global_batch_size": 1024, "micro_batch_size": 4, "dp": 32, "tp": 8, "pp": 1, "cp": 1,
    "sharding": "ddp", "recompute": "full", "precision": "fp16",
}  # fmt: skip


def test_a_run_is_a_question_whose_origins_say_what_was_stated():
    of = question_of_row(RUN)
    assert (of.program, of.device, of.tp, of.dp, of.zero) == ("megatron", "a100_80gb", 8, 32, 0)
    assert (of.gradient_accumulation_steps, of.recompute, of.precision) == (8, "full", "fp16")
    assert of.attention == "explicit"  # FlashAttention is younger
    assert shape_without_type(of.config or {}).parameters == pytest.approx(18.4e9, rel=0.01)  # as published
    assert of.origin("recompute").kind == "key"
    assert of.origin("attention").kind == "assumption"
    assert of.gradients == "fp32"  # bf16 is that of NeMo's recipes alone


def test_a_run_with_adapters_has_their_layers():
    row = {
        "framework": "LitGPT", "model": "Llama 2 7 B", "gpus": 1, "device": "L4-24GB", "seq_len": 512,
        "method": "qlora", "lora": {"rank": 32, "targets": ["query", "value"]}, "checkpointing": True,
        "precision": "bf16-true with bnb.nf4-dq weights", "padded_or_packed": "padded to longest of batch",
        "optimizer": "PagedAdamW8bit", "sharding": "none", "offload": "activations to CPU",
    }  # fmt: skip
    of = question_of_row(row, lambda name: {**LLAMA, "model_type": "llama"})
    assert of.adapters is not None
    assert (of.adapters.rank, of.adapters.targets, of.adapters.base) == (32, ("q_proj", "v_proj"), "nf4")
    assert (of.states, of.recompute, of.optimizer) == ("bf16", "full", "adamw_8bit")
    assert (of.offload, of.zero) == (("activations",), 0)
    assert [(key.key, key.memory) for key in of.keys] == [("padded_or_packed", "lowers")]
    with pytest.raises(ValueError, match="model 'Llama 2 7 B': its hidden_size"):
        question_of_row(row)
