"""axolotl's keys and their values: each row is a file's text, what is read of it, and what is named."""

import pytest
import yaml

from harness.ask.certainty import unmodelled
from harness.frameworks.axolotl import LIGER
from harness.frameworks.read import read_own_text
from harness.frameworks.techniques import approximated
from harness.question import Adapters, FieldOrigin

BASE = {"base_model": "NousResearch/Llama-2-7b-hf", "sequence_len": 4096, "sample_packing": True}
CHECKPOINTS = {"gradient_checkpointing": True}
KERNELS = {"lora_mlp_kernel": "lowers"}
QLORA = {"adapter": "qlora", "load_in_4bit": True, "lora_r": 8, "lora_qkv_kernel": False}
LORA = {"adapter": "lora", "lora_r": 8, "lora_qkv_kernel": False}
NF4 = Adapters(rank=8, base="nf4")
NARROW = Adapters(rank=8, base="nf4", dtype="bf16")  # by TRL's trainers, or where peft is not to widen them
UNBOUND = {"rl": "either", "max_prompt_len": "raises"}  # None by default; the pinned TRL 1.8.0 has no bound
EMBEDDING = {"attn_implementation": "raises"}
CUT = "axolotl.integrations.cut_cross_entropy.CutCrossEntropyPlugin"
FUSED = dict.fromkeys(("liger_fused_linear_cross_entropy", "liger_rms_norm", "liger_glu_activation"), True)
OFFLOAD = "deepspeed_configs/zero3_bf16_cpuoffload_all.json"
BOTH = ("optimizer", "parameters")
FSDP = {"fsdp": ["full_shard", "auto_wrap"], "fsdp_config": {"fsdp_offload_params": True}}
VISION = r"model.language_model.layers.[\d]+.(mlp|self_attn).(up|down|gate|q|k|v|o)_proj"
ALL = ("down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj")

ROWS = [
    ({"bf16": "auto"}, {"precision": "bf16", "states": "bf16"}, EMBEDDING),
    ({"eager_attention": True}, {"attention": "explicit"}, EMBEDDING),
    ({"float16": True, "bf16": False}, {"precision": "fp16", "states": "bf16"}, EMBEDDING),
    (QLORA | FSDP, {"sharing": "fsdp1", "zero": 3, "offload": BOTH, "adapters": NF4}, {}),
    (QLORA | {"lora_target_modules": VISION}, {"adapters": Adapters(rank=8, base="nf4", targets=ALL)}, {}),
    ({"deepspeed": "deepspeed_configs/zero1_torch_compile.json"}, {"sharing": "zero", "zero": 1},
     {"overlap_comm": "raises"}),
    (QLORA | {"rl": "dpo", "micro_batch_size": 2}, {"micro_batch_size": 4, "adapters": NARROW}, {}),
    (QLORA | {"rl": "simpo"}, {"adapters": NF4}, {}),
    (LORA | {"rl": "dpo", "fsdp_version": 2, "fsdp_config": {"reshard_after_forward": False}},
     {"zero": 2, "adapters": Adapters(rank=8, dtype="bf16")}, {}),
    (QLORA | {"peft_autocast_adapter_dtype": False}, {"adapters": NARROW}, {}),
    (LORA | {"load_in_4bit": True}, {"adapters": Adapters(rank=8)}, {"load_in_4bit": "raises"}),
    (LORA | {"load_in_4bit": True} | FSDP, {"adapters": Adapters(rank=8)}, {}),
    (LORA | {"load_in_4bit": True, "base_model": "hugging-quants/Meta-Llama-3.1-405B-BNB-NF4-BF16"},
     {"adapters": NF4}, {}),
    ({"reward_model": True, "sample_packing": False}, {"micro_batch_size": 2, "objective": "reward",
     "shorter": False}, {"reward_model": "lowers"} | EMBEDDING),
    ({"process_reward_model": True}, {"micro_batch_size": 1}, {"process_reward_model": "lowers"} | EMBEDDING),
    ({"attn_implementation": "sdpa", "bf16": False}, {}, {"sample_packing": "raises"}),
    ({"attn_implementation": "sdpa", "sdpa_varlen": True, "bf16": False}, {}, {"sdpa_varlen": "either"}),
    (QLORA | {"gradient_checkpointing": True, "selective_checkpointing": {"save": ["attention"]}},
     {"recompute": "full", "reentrant": False}, {"selective_checkpointing.save": "raises"}),
    ({"torch_compile": "auto"}, {"compile": True}, EMBEDDING),
    ({"fsdp": ["shard_grad_op"], "fsdp_config": {"fsdp_sharding_strategy": "FULL_SHARD"}},
     {"sharing": "fsdp1", "zero": 2}, {}),
    ({"rl": "dpo", "flash_attention": True}, {"micro_batch_size": 2, "reference_weight_B": 2}, {}),
    ({"rl": "dpo", "flash_attention": True, "precompute_ref_log_probs": True},
     {"forward_passes": 0, "reference_weight_B": 2}, {}),
    (QLORA | {"rl": "dpo", "precompute_ref_log_probs": True}, {"reference_weight_B": 0}, {}),
    (QLORA | {"rl": "grpo", "trl": {"max_completion_length": 256}}, {"seq_len": 256}, UNBOUND),
    (QLORA | {"rl": "grpo", "max_prompt_len": 512, "trl": {"max_completion_length": 256}},
     {"seq_len": 768}, {"rl": "either"}),
    (QLORA | {"gradient_checkpointing": "offload"}, {"recompute": "full", "offload": ("activations",)}, {}),
    (QLORA | {"optimizer": "paged_adamw_8bit"}, {"optimizer": "adamw_8bit"}, {"optimizer": "lowers"}),
    (QLORA | {"optimizer": "ao_adamw_fp8"}, {"optimizer": "adamw"}, {"optimizer": "lowers"}),
    (QLORA | {"plugins": [CUT]}, {"fused_loss": True}, {}),
    (QLORA | FUSED, {"fused_loss": False, "fused_layers": False}, {}),
    (QLORA | FUSED | {"plugins": [LIGER]}, {"fused_loss": True, "fused_layers": True}, {}),
    (QLORA | FUSED | {"plugins": [LIGER], "base_model": "bigcode/starcoder2-3b"},
     {"fused_loss": True, "fused_layers": False}, {}),
    (QLORA | CHECKPOINTS, {"reentrant": True}, {}),
    (QLORA | CHECKPOINTS | {"gradient_checkpointing_kwargs": {"preserve_rng_state": False}},
     {"reentrant": False}, {}),
    (QLORA | CHECKPOINTS | {"base_model": "google/gemma-4-31B-it"}, {"reentrant": False},
     {"vision_config": "raises"}),
    (QLORA | CHECKPOINTS | {"unfrozen_parameters": ["lm_head"]}, {"reentrant": False},
     {"unfrozen_parameters": "lowers"}),
    (QLORA | {"cut_cross_entropy": True}, {"fused_loss": False}, {}),
    (QLORA | {"lora_modules_to_save": ["lm_head"]}, {}, {"lora_modules_to_save": "raises"}),
    (QLORA | {"sample_packing": False}, {}, {"sample_packing": "lowers"}),
    ({"fsdp_version": 2, "fsdp_config": {"reshard_after_forward": True}, "dp_shard_size": 2,
      "tensor_parallel_size": 2, "sequence_parallel_degree": 4},
     {"dp": 2, "tp": 2, "cp": 4, "sharing": "fsdp2"}, {}),
    (QLORA | {"lora_dropout": 0.05, "bnb_config_kwargs": {"bnb_4bit_use_double_quant": False}},
     {"adapters": Adapters(rank=8, base="nf4", double=False, dropout=0.05)}, {}),
    ({"fsdp_version": 2, "fsdp_config": {}}, {"sharing": "fsdp2", "states": "bf16", "precision": "bf16"}, {}),
    (QLORA | {"fsdp_version": 2, "fsdp_config": {}}, {"sharing": "fsdp2", "states": "fp32"}, {}),
    (QLORA | {"quantize_moe_experts": True},
     {"adapters": Adapters(rank=8, base="nf4", experts="tensor")}, {}),
    (QLORA | {"llama4_linearized_experts": True},
     {"adapters": Adapters(rank=8, base="nf4", experts="linear")}, {}),
    (QLORA | {"num_labels": 2}, {}, {"num_labels": "lowers"}),
    (QLORA | {"rl": "grpo", "trl": {"use_vllm": True}}, {"forward_passes": 1}, {"rl": "either"}),
    ({"rl": "grpo", "rl_beta": 0.1, "flash_attention": True, "trl": {"max_completion_length": 9}},
     {"forward_passes": 1, "reference_weight_B": 4}, UNBOUND),
    (QLORA | {"lora_qkv_kernel": None}, {}, KERNELS),
    (QLORA | {"lora_qkv_kernel": None, "trust_remote_code": True}, {}, {}),
    (QLORA | {"lora_qkv_kernel": None} | FSDP, {}, {}),
    (QLORA | {"lora_qkv_kernel": None, "rl": "dpo"}, {}, {}),
    (QLORA | {"rl": "ebft", "trl": {"max_completion_length": 256}}, {"seq_len": 256}, UNBOUND),
    (QLORA | {"loftq_bits": 4, "vllm": {"port": 1}, "use_trackio": True}, {}, {}),
]  # fmt: skip
"""Other keys than `BASE`, fields of the question, and keys that change the bytes and are not modelled."""


@pytest.mark.parametrize(("keys", "fields", "named"), ROWS, ids=lambda one: str(one)[:60])
def test_a_key_is_read_with_its_meaning(keys, fields, named):
    question = read_own_text(yaml.safe_dump(BASE | keys), suffix=".yaml")
    assert {name: getattr(question, name) for name in fields} == fields
    assert {key.key: key.memory for key in unmodelled(question)} == named
    assert not [key.key for key in question.keys if key.means.startswith("no key of")]


@pytest.mark.parametrize(("keys", "says"), [
    ({"rl": "ppo"}, "rl is 'ppo'; known: dpo"),
    ({"plugins": ["axolotl.integrations.hatchery.HatcheryPlugin"], "hatchery": {"backend": "tinker"}},
     "plugins has Hatchery: a remote service"),
    ({"rl": "ebft", "ebft": {"mode": "strided"}}, "ebft.mode is strided, whose micro-batches"),
])  # fmt: skip
def test_a_method_that_is_not_read_is_refused(keys, says):
    with pytest.raises(ValueError, match=says):
        read_own_text(yaml.safe_dump(BASE | keys), suffix=".yaml")


def test_trained_ends_are_named_with_their_bytes():
    for names, modules in ((["embed_tokens", "lm_head"], 2), (["lm_head"], 1), (["norm", "lm_head"], None)):
        question = read_own_text(
            yaml.safe_dump(BASE | QLORA | {"lora_modules_to_save": names}), suffix=".yaml"
        )
        (key,) = unmodelled(question)
        assert key.most_B == (modules and 22 * modules * 32000 * 4096)  # 4 of DDP's bucket


def test_trained_ends_have_no_bucket_of_their_own_where_states_are_sharded():
    keys = BASE | QLORA | {"lora_modules_to_save": ["lm_head"], "deepspeed": "deepspeed_configs/zero3.json"}
    (key,) = (
        one for one in read_own_text(yaml.safe_dump(keys), suffix=".yaml").keys if one.most_B is not None
    )
    assert (key.key, key.most_B) == ("lora_modules_to_save", 18 * 32000 * 4096)


def test_a_mask_of_packed_sequences_has_its_bytes_and_none_is_named_where_no_kernel_is():
    for keys, most_B in (({"sdp_attention": True}, 2 * 4096**2), ({"flash_attention": True}, None), ({}, ())):
        question = read_own_text(yaml.safe_dump(BASE | {"micro_batch_size": 2} | keys), suffix=".yaml")
        packed = [key for key in question.keys if key.key == "sample_packing"]
        named = [key for key in packed if key.status == "not modelled"]
        assert ([key.most_B for key in named] == [most_B]) if most_B != () else not named


def test_peft_widens_experts_next_to_a_quantized_base_where_nothing_shards_it():
    for keys, experts in (
        ({}, "fp32"),
        ({"quantize_moe_experts": True}, "tensor"),
        ({"deepspeed": "deepspeed_configs/zero2.json"}, "bf16"),
        ({"fsdp_version": 2, "fsdp_config": {}}, "bf16"),
        ({"adapter": "lora", "load_in_4bit": False}, "bf16"),
    ):
        text = yaml.safe_dump(BASE | QLORA | {"base_model": "Qwen/Qwen1.5-MoE-A2.7B"} | keys)
        assert read_own_text(text, suffix=".yaml").adapters.experts == experts


def test_what_a_dry_run_takes_otherwise_has_a_direction():
    def named(keys, devices=2):
        question = read_own_text(yaml.safe_dump(BASE | {"devices": devices} | keys), suffix=".yaml")
        return {
            key.key: (key.memory, key.least)
            for key in approximated(question.with_fields(FieldOrigin("command"), devices=devices))
        }

    assert named(QLORA | FSDP) == {}  # whose peaks are published
    assert named({"adapter": "lora", "load_in_8bit": True, "lora_r": 8} | FSDP) == {"base": ("lowers", None)}
    mixture = QLORA | {"base_model": "Qwen/Qwen3-30B-A3B"}
    assert named(mixture, 1) == {"base": ("lowers", 0.125)}  # of experts in fp32
    assert named(mixture | {"deepspeed": "deepspeed_configs/zero2.json"}) == {"base": ("lowers", 0.25)}
    every = LORA | {"base_model": "Qwen/Qwen3-30B-A3B", "lora_target_modules": list(ALL)}
    assert named(every) == {"targets": ("raises", None)}
    assert named(every | {"lora_target_modules": ["q_proj", "up_proj"]}) == {}
    linear = LORA | {"lora_target_linear": True}
    assert named(linear | {"base_model": "deepseek-ai/DeepSeek-V2-Lite"}) == {"targets": ("raises", None)}
    assert named(linear | {"base_model": "Qwen/Qwen3-30B-A3B"}) == {}  # without a dense layer next to experts
    assert named(every | {"base_model": "meta-llama/Llama-4-Scout-17B-16E"}) == {}  # as peft leaves them
    assert named(QLORA | {"gradient_checkpointing": "offload"}, 1) == {}  # it is dry-run
    assert named(QLORA, 8) == {}
