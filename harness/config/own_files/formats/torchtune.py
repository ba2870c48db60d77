"""torchtune's YAML.

Sources: torchtune commit bd2a0fc of April 2026 (recipes/full_finetune_distributed.py,
lora_finetune_distributed.py, recipes/configs, torchtune/modules/loss/cross_entropy_loss.py).
"""

from __future__ import annotations

from harness.config.own_files.formats.words import optimizer_of
from harness.config.own_files.models import name_among
from harness.config.own_files.setup import Adapters, NotUnderstood, OwnSetup
from harness.config.own_files.table import Fields, Flat

NAME = "torchtune"
TITLE = "torchtune's YAML"
SOURCE = "torchtune bd2a0fc"


ATTENTION_MODULES = ("k_proj", "output_proj", "q_proj", "v_proj")
MLP_MODULES = ("down_proj", "gate_proj", "up_proj")
"""Hugging Face's names of torchtune's w2, w1 and w3."""


def recognised(flat: Flat) -> int:
    """Return how many keys only torchtune has."""
    found = sum(
        key.endswith("_component_") and str(value).startswith("torchtune.") for key, value in flat.items()
    )
    return 2 * found


def prepared(flat: Flat) -> Flat:
    """Return the values with OmegaConf's references filled in."""
    return {
        key: flat.get(str(value)[2:-1]) if str(value).startswith("${") and str(value).endswith("}") else value
        for key, value in flat.items()
    }


def settle(fields: Fields, flat: Flat) -> Fields:
    """Return fields of OwnSetup."""
    unclear: list[NotUnderstood] = []
    if "_component" not in fields:
        raise ValueError("model._component_ is missing; it names the model's builder")
    found = {name: value for name, value in fields.items() if not name.startswith("_")}
    builder = fields["_component"].rpartition(".")[2]
    shard, replicas = fields["_shard"], fields["_replicas"]
    found |= {
        "engine": "fsdp2",
        "zero": 3 if fields["_reshard"] else 2,
        "replicas": replicas,
        "dp": None if shard == -1 else shard * replicas,
        "sequence_parallel": False,
        "optimizer_impl": "fused" if fields["_fused"] else "foreach",
        "precision": "fp8" if fields["_fp8"] else fields["_dtype"],
        "states": "bf16" if fields["_dtype"] == "bf16" else "fp32",
        "optimizer": optimizer_of("optimizer._component_", fields["_optimizer"], unclear),
        "recompute": "full" if fields["_recompute"] else "none",
        "model_name": builder,
    }
    if fields.get("_ac_mode") == "selective":
        option = str(fields.get("_ac_option") or 1)
        found |= (
            {"recompute": "selective"}
            if option == "op"
            else {"recompute": "full", "recompute_every": int(option)}
        )
    offload = (["activations"] if fields["_activations"] else []) + (
        ["optimizer", "parameters"] if fields["_offload"] else []
    )
    found["offload"] = tuple(offload)
    if "LinearCrossEntropy" in str(fields.get("_loss")) or "ChunkedOutput" in str(fields.get("_loss")):
        found["loss_chunks"] = fields["_chunks"]
    for prefix in ("qlora_", "lora_"):
        if builder.startswith(prefix):
            found["model_name"] = builder.removeprefix(prefix)
            found["adapters"] = _adapters(fields, prefix == "qlora_")
            found["states"] = "fp32"
            break
    if "seq_len" not in found:
        unclear.append(
            NotUnderstood("tokenizer.max_seq_len", None, "is not set, so the data decide the tokens")
        )
    return {**found, "not_understood": unclear}


def _adapters(fields: Fields, quantized: bool) -> Adapters:
    if "_rank" not in fields:
        raise ValueError("model.lora_rank is missing next to a builder with adapters")
    names = [{"output_proj": "o_proj"}.get(one, one) for one in fields.get("_attention") or ATTENTION_MODULES]
    return Adapters(
        rank=fields["_rank"],
        targets=tuple(sorted({*names, *(MLP_MODULES if fields.get("_mlp") else ())})),
        base="nf4" if quantized or fields.get("_quantized") else "bf16",
        dora=bool(fields.get("_dora")),
    )


BUILDERS = {
    "llama2": "llama2_7b llama2_13b llama2_70b",
    "llama3_1": "llama3_1_8b llama3_1_70b llama3_1_405b",
    "llama3": "llama3_8b llama3_70b",
    "llama3_2": "llama3_2_1b llama3_2_3b",
    "llama3_3": "llama3_3_70b",
    "qwen2_5": "qwen2_5_0_5b qwen2_5_1_5b_instruct qwen2_5_3b qwen2_5_7b_instruct qwen2_5_14b_instruct "
    "qwen2_5_32b_instruct qwen2_5_72b_instruct",
    "qwen2": "qwen2_0_5b qwen2_1_5b qwen2_7b",
    "qwen3": "qwen3_0_6b_instruct qwen3_1_7b_instruct qwen3_4b_instruct qwen3_8b_instruct "
    "qwen3_14b_instruct qwen3_32b",
    "gemma": "gemma_2b gemma_7b",
    "gemma2": "gemma2_2b gemma2_9b gemma2_27b",
    "mistral": "mistral_7b",
    "phi3": "phi3_mini",
    "phi4": "phi4_14b",
}
"""Its builders of published shapes by family (bd2a0fc, torchtune/models/*/_model_builders.py)."""


def _builder_of(setup: OwnSetup) -> tuple[str, str]:
    families = {builder: family for family, listed in BUILDERS.items() for builder in listed.split()}
    found = name_among(setup.model_name, families)
    if found is None:
        raise ValueError(
            f"torchtune has no builder of {setup.model_name}; its families are {', '.join(BUILDERS)}"
        )
    return families[found], found


def written(setup: OwnSetup) -> Flat:
    """Return torchtune's keys of a set-up; raises ValueError where it cannot express it."""
    for name, value in (("pp", setup.pp), ("ep", setup.ep)):
        if value > 1:
            raise ValueError(f"torchtune has no key for {name} {value}")
    if setup.engine != "fsdp2" or setup.zero not in (2, 3):
        raise ValueError(f"torchtune shards by FSDP2; engine is {setup.engine}, zero {setup.zero}")
    if setup.precision not in ("bf16", "fp32", "fp8"):
        raise ValueError(f"torchtune has no dtype for precision {setup.precision}")
    prefix = "" if setup.adapters is None else "qlora_" if setup.adapters.base == "nf4" else "lora_"
    family, builder = _builder_of(setup)
    flat: dict[str, object] = {
        "model._component_": f"torchtune.models.{family}.{prefix}{builder}",
        "tokenizer.max_seq_len": setup.seq_len,
        "batch_size": setup.micro_batch_size,
        "gradient_accumulation_steps": setup.gradient_accumulation_steps
        or (setup.micro_batches() if setup.global_batch_size else 1),
        "optimizer._component_": {
            "adamw": "torch.optim.AdamW",
            "adamw_8bit": "bitsandbytes.optim.AdamW8bit",
        }.get(setup.optimizer, setup.optimizer),
        "optimizer.fused": setup.optimizer_impl == "fused",
        "optimizer_in_bwd": setup.optimizer_in_backward,
        "enable_activation_checkpointing": setup.recompute != "none",
        "enable_activation_offloading": "activations" in setup.offload,
        "fsdp_cpu_offload": "parameters" in setup.offload,
        "fsdp_reshard_after_forward": setup.zero == 3,
        "dtype": "fp32" if setup.states == "fp32" and setup.adapters is None else "bf16",
        "enable_fp8_training": setup.precision == "fp8",
        "compile": setup.compile,
        "tensor_parallel_dim": setup.tp,
        "context_parallel_dim": setup.cp,
        "data_parallel_replicate_dim": setup.replicas,
        "data_parallel_shard_dim": -1 if setup.dp is None else setup.dp // setup.replicas,
    }
    if setup.loss_chunks > 1:
        flat["loss._component_"] = "torchtune.modules.loss.LinearCrossEntropyLoss"
        flat["loss.num_output_chunks"] = setup.loss_chunks
    else:
        flat["loss._component_"] = "torch.nn.CrossEntropyLoss"
    if setup.recompute == "selective":
        flat |= {"ac_mode": "selective", "ac_option": "op"}
    elif setup.recompute == "full" and setup.recompute_every > 1:
        flat |= {"ac_mode": "selective", "ac_option": setup.recompute_every}
    if setup.adapters is not None:
        flat |= {
            "model.lora_rank": setup.adapters.rank,
            "model.lora_attn_modules": [
                {"o_proj": "output_proj"}.get(one, one)
                for one in setup.adapters.targets
                if one not in MLP_MODULES
            ]
            or list(ATTENTION_MODULES),
            "model.apply_lora_to_mlp": not setup.adapters.targets
            or bool({*setup.adapters.targets} & {*MLP_MODULES}),
            "model.use_dora": setup.adapters.dora,
        }
    return flat
