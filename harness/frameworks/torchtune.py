"""torchtune's YAML.

Sources: torchtune commit bd2a0fc of April 2026 (recipes/full_finetune_distributed.py,
full_finetune_single_device.py, lora_finetune_distributed.py, lora_dpo_*.py, full_dpo_distributed.py,
dev/grpo_full_finetune_distributed.py, recipes/configs, torchtune/modules/loss/cross_entropy_loss.py,
torchtune/models/*/_component_builders.py, torchtune/models/gemma2/_attention.py).
"""

from __future__ import annotations

import re
from typing import Any

from harness.frameworks.models import name_in
from harness.frameworks.table import Fields, Parts, yaml_tree
from harness.frameworks.words import adapters_of, devices_of, filled, layers_named, mesh, offload_of, steps_of
from harness.question import Adapters, Question

ATTENTION_MODULES = ("k_proj", "output_proj", "q_proj", "v_proj")
MLP_MODULES = ("down_proj", "gate_proj", "up_proj")
"""Hugging Face's names of torchtune's w2, w1 and w3."""

SIZES = ("num_hidden_layers", "hidden_size", "num_attention_heads", "num_key_value_heads", "vocab_size")
"""Sizes that a builder without a size of its own needs; of others there are defaults."""

PROCESSES = re.compile(r"--nproc_per_node[ =](\d+)")

ONE_DEVICE: Fields = {"devices": 1, "dp": 1, "sharing": "ddp", "zero": 0}


prepared = filled


def settle(parts: Parts) -> Fields:
    """Return fields of Question."""
    if "_component" not in parts:
        others = [key.partition(".")[0] for key in parts.flat if key.endswith("_model._component_")]
        why = (
            f"it trains by {', '.join(others)}, which is not read"
            if others
            else "it names the model's builder"
        )
        raise ValueError(f"model._component_ is missing; {why}")
    if any(key.startswith("orchestration.") for key in parts.flat):
        raise ValueError("it generates and trains on separate devices (asynchronous GRPO), which is not read")
    if not any(key.startswith("optimizer") for key in parts.flat):
        why = "it generates, evaluates or quantizes; give the file of a recipe that trains"
        raise ValueError(f"optimizer._component_ is missing: {why}")
    if ".llama3_2_vision." in parts["_component"]:
        raise ValueError("its model sees by layers of cross-attention, which are not modelled")
    builder = parts["_component"].rpartition(".")[2]
    shard, replicas = parts["_shard"], parts["_replicas"]
    fields: Fields = {
        "sharing": "fsdp2",
        "replicas": replicas,
        "dp": None if shard == -1 else shard * replicas,
        "precision": "fp8" if parts["_fp8"] else parts["_dtype"],
        "states": "bf16" if parts["_dtype"] == "bf16" else "fp32",
        "recompute": "full" if parts["_recompute"] else "none",
        "offload": offload_of(parts),
    }
    if parts.get("_ac_mode") == "selective":
        option = str(parts.get("_ac_option") or 1)
        every = {"recompute": "full", "recompute_every": int(option)} if option != "op" else {}
        fields |= every or {"recompute": "selective"}
    if any(loss in str(parts.get("_loss")) for loss in ("LinearCrossEntropy", "ChunkedOutput")):
        fields["loss_chunks"] = parts["_chunks"]
    prefix = next((one for one in ("qlora_", "lora_") if builder.startswith(one)), "")
    fields["model_name"] = builder.removeprefix(prefix).replace("code_llama2", "codellama")
    if prefix:
        fields["adapters"] = _adapters(parts, prefix == "qlora_")
    if (config := _config(builder.removeprefix(prefix), parts)) is not None:
        fields["config"] = config
    if builder.removeprefix(prefix).startswith("gemma2"):
        fields["attention"] = "explicit"  # _attention.py: scores with a cap, softmax of them in fp32
    if any(key.startswith("compile.") for key in parts.flat):
        fields["compile"] = bool(parts.flat.get("compile.model", True))
    fields |= _method(parts, bool(prefix))
    if _is_called("single_device", parts) or "low_cpu_ram" in parts.flat:
        return fields | ONE_DEVICE
    processes = PROCESSES.search(str(parts.get("_comment")))
    if processes and not {"_per_node", "_nodes"} & parts.keys():
        parts["_per_node"] = int(processes[1])
    fields["devices"] = devices_of(parts)
    return fields


def _config(builder: str, parts: Parts) -> dict[str, Any] | None:
    """Return the config of a model whose sizes are its builder's arguments; None of any other."""
    tree = yaml_tree("torchtune")
    model_type = next((one for one, names in tree["components"].items() if builder in names.split()), None)
    if model_type is None or any(f"_{name}" not in parts for name in SIZES):
        return None
    given = {
        name: parts[f"_{name}"] for name in (*SIZES, "intermediate_size", "head_dim") if f"_{name}" in parts
    }
    width = 4 * int(2 * given["hidden_size"] / 3)  # models/llama2/_model_utils.py, scale_hidden_dim_for_mlp
    longest = parts.flat.get("model.max_seq_len")
    if model_type == "qwen3":  # whose class has another size by default
        given.setdefault("head_dim", given["hidden_size"] // given["num_attention_heads"])
    return {
        "model_type": model_type,
        "intermediate_size": -(-width // 256) * 256,
        "tie_word_embeddings": parts.get("_tied", builder in tree["tied"].split()),
        **({"max_position_embeddings": longest} if isinstance(longest, int) else {}),
        **given,
    }


def _is_called(recipe: str, parts: Parts) -> bool:
    """Return whether a recipe is meant: by its command, also in a comment, the file's name or its folder."""
    started = parts.flat.get("launcher.recipe") or parts.get("_comment")
    texts = (parts.name, parts.flat.get("output_dir"), started)
    return any(recipe in str(text) for text in texts)


def _method(parts: Parts, adapters: bool) -> Fields:
    """Return what the recipes of DPO and GRPO train on: pairs of answers, or some generated ones per prompt.

    GRPO's update takes all answers to a batch's prompts at once, after passes of the old policy's and of the
    reference model's log-probabilities. With adapters the trained model without them is the reference. What
    is not packed is padded to the longest of its micro-batch (torchtune/data/_collate.py).
    """
    micro = parts["micro_batch_size"]
    fields: Fields = {"shorter": "seq_len" in parts and not _is_packed(parts)}
    if not adapters and any(key.startswith("ref_checkpointer.") for key in parts.flat):
        fields["reference_weight_B"] = 4 if parts["_dtype"] == "fp32" else 2
    if "rlhf.loss" in str(parts.get("_loss")) or _is_called("_dpo", parts):
        return fields | {"objective": "dpo", "forward_passes": 1, "micro_batch_size": 2 * micro}
    if "_samples" not in parts:
        return fields
    fields |= {"objective": "grpo", "forward_passes": 2, "rollout": "transformers", "shorter": False}
    if "seq_len" in parts and "_generated" in parts:
        fields["seq_len"] = parts["seq_len"] + parts["_generated"]
    return fields | {"micro_batch_size": micro * parts["_samples"]}


def _is_packed(parts: Parts) -> bool:
    """Return whether samples are packed: of the dataset, or of one of several."""
    several = parts.flat.get("dataset")
    each = [one for one in several if isinstance(one, dict)] if isinstance(several, list) else []
    return any(one.get("packed") for one in (*each, {"packed": parts.flat.get("dataset.packed")}, parts.flat))


def _adapters(parts: Parts, quantized: bool) -> Adapters:
    if "_rank" not in parts:
        raise ValueError("model.lora_rank is missing next to a builder with adapters")
    names = [*(parts.get("_attention") or ATTENTION_MODULES), *(["mlp"] if parts.get("_mlp") else [])]
    return adapters_of(
        parts,
        targets=tuple(sorted(layers_named(names))),
        base="nf4" if quantized or parts.get("_4bit") else "bf16",
        dtype="bf16" if parts["_dtype"] == "bf16" else "fp32",
    )


def parts_of(question: Question) -> Fields:
    """Return torchtune's parts of a question; raises ValueError where it cannot express it."""
    chunks, adapters = question.loss_chunks, question.adapters
    prefix = "" if adapters is None else "qlora_" if adapters.base == "nf4" else "lora_"
    family, _, builder = name_in("torchtune", question.model_name).partition("/")
    loss = "torchtune.modules.loss.LinearCrossEntropyLoss" if chunks > 1 else "torch.nn.CrossEntropyLoss"
    parts: Fields = {
        "_component": f"torchtune.models.{family}.{prefix}{builder}",
        "gradient_accumulation_steps": steps_of(question),
        "_loss": loss,
        "_chunks": chunks if chunks > 1 else None,
        "_recompute": question.recompute != "none",
        "_dtype": "fp32" if question.states == "fp32" else "bf16",
        "_fp8": question.precision == "fp8",
        **mesh(question),
        "_replicas": question.replicas,
    }
    if question.recompute == "selective" or (question.recompute == "full" and question.recompute_every > 1):
        option = "op" if question.recompute == "selective" else question.recompute_every
        parts |= {"_ac_mode": "selective", "_ac_option": option}
    return parts if adapters is None else parts | _adapter_parts(adapters)


def _adapter_parts(adapters: Adapters) -> Fields:
    attention = [one for one in adapters.targets if one not in MLP_MODULES]
    names = [{"o_proj": "output_proj"}.get(one, one) for one in attention]
    return {
        "_rank": adapters.rank,
        "_attention": names or list(ATTENTION_MODULES),
        "_mlp": not adapters.targets or len(attention) < len(adapters.targets),
        "_dora": adapters.dora,
    }
