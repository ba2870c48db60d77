"""OpenRLHF's command lines: SFT, DPO, reward models, PPO and what follows from it.

Options have sections since 2026, as in --ds.zero_stage; those of older versions are renamed.

Sources: OpenRLHF commit 3c3be62 of August 2026 (cli/train_*.py, utils/deepspeed/deepspeed.py,
trainer/dpo_trainer.py, models/actor.py); for older options and their defaults 564e467 of September 2025 and
284ae68 of October 2024.
"""

from __future__ import annotations

from typing import Any

from harness.frameworks import words
from harness.frameworks.table import Fields, Flat, Parts, number_of, yaml_tree
from harness.question import Direction, Question

OLDER = {"bf16", "max_epochs", "save_path", "learning_rate", "actor_learning_rate", "dataset"}
"""Options without a section, which files of older versions have."""


def spelled(flat: Flat) -> Flat:
    """Return the values as options of a command line, whose flags have no value."""
    return {key: value for key, value in flat.items() if value is not False}


def settle(parts: Parts) -> Fields:
    """Return fields of Question."""
    trainer = str(parts.get("_program", "")).rpartition("train_")[2]
    on_actor = any(key.startswith(("actor.", "actor_", "rollout", "prompt_max_len")) for key in parts.flat)
    trainer = trainer or ("ppo_ray" if on_actor else "sft")
    usual = yaml_tree("openrlhf")["trainers"].get(trainer, {})
    each = usual.get("sequences", 1)
    zero, adapters = parts["zero"], parts["_rank"] > 0 or parts["_4bit"]
    fields: Fields = {
        "sharing": "zero" if zero else "ddp",
        "states": "fp32",
        "devices": _devices(parts, trainer),
        "offload": ("optimizer",) if parts["_offload"] and zero else (),
        "adapters": words.adapters_of(parts) if adapters else None,
        "attention": _attention(parts),
        "seq_len": _length(parts, usual.get("tokens", 512)),
    }
    micro = parts.get("_micro", usual.get("micro", 8)) * each
    if parts["_dynamic"]:
        tokens = parts["_tokens"] * parts["cp"]
        micro = words.budget_of("train.max_tokens_per_gpu", tokens, fields["seq_len"], parts)
    ranks = fields["devices"] and max(1, fields["devices"] // (parts["tp"] * parts["cp"]))
    if not parts["_dynamic"]:  # deepspeed's _batch_assertion, of utils/deepspeed/deepspeed.py's sizes
        key = "train.micro_batch_size"
        words.name_undivided(key, parts["_batch"], micro // each, ranks, "DeepSpeed", parts)
    fields |= words.batch_fields(parts["_batch"] * each, micro, ranks)
    fields |= words.shared_sequence("ds.ring_attn_size", parts["cp"], fields["adapters"], parts)
    if ranks and fields["cp"] < parts["cp"]:
        at_once = fields["micro_batch_size"] * ranks
        fields["gradient_accumulation_steps"] = max(1, fields["global_batch_size"] // at_once)
    _other_models(parts, trainer)
    return fields | _objective(parts, trainer, usual)


def _objective(parts: Parts, trainer: str, usual: Fields) -> Fields:
    """Return what is trained; PPO's old log-probabilities are computed anew, and vLLM generates."""
    if not trainer.startswith("ppo"):
        passes = {"objective": usual.get("objective", "sft"), "forward_passes": usual.get("passes", 0)}
        if trainer in ("dpo", "kto") and not _value(parts, "ref.offload", "ref_offload"):
            if parts.get("_4bit"):
                parts.leave_out(
                    "ref.model_name_or_path", None, "a frozen reference model", "raises", "raises"
                )
            else:
                passes["reference_weight_B"] = 2
        return {"shorter": trainer != "pretrain", **passes}
    with_critic = (_value(parts, "algo.advantage.estimator", "advantage_estimator") or "gae") == "gae"
    coefficient = _value(parts, "algo.kl.init_coef", "init_kl_coef")
    with_reference = coefficient is None or number_of("algo.kl.init_coef", coefficient, "number") > 0
    return {
        "objective": "ppo" if with_critic else "grpo",
        "forward_passes": 1 + with_reference,
        "rollout": "vllm",
    }


def _value(parts: Parts, *keys: str) -> Any:
    return next((parts.flat[key] for key in keys if key in parts.flat), None)


def _devices(parts: Parts, trainer: str) -> int | None:
    if not trainer.startswith("ppo_ray"):
        parts |= {"_per_node": parts.get("_gpus"), "_nodes": parts.get("_launched")}
    elif "actor.num_gpus_per_node" not in parts.flat:
        parts["_per_node"] = 8
    return words.devices_of(parts)


def _attention(parts: Parts) -> str:
    """Return attention's kernel, which was explicit without --flash_attn in older versions."""
    older = OLDER & parts.flat.keys() and not parts.flat.get("ds.packing_samples")
    if parts.get("_attention"):
        return words.attention_of("ds.attn_implementation", parts["_attention"], parts)
    if older and "_flash" not in parts:
        why = "before August 2025 attention was explicit without flash_attn; flash is taken"
        parts.leave_out("flash_attn", None, why, "raises", "raises")
    return "flash"


def _length(parts: Parts, usual: int) -> int:
    if parts.get("_length"):
        return int(parts["_length"])
    if "_prompt" in parts or "_response" in parts:
        return int(parts.get("_prompt", 1024) + parts.get("_response", 1024))
    return usual


def _other_models(parts: Parts, trainer: str) -> None:
    """Name what reinforcement learning or preferences add to supervised training of the same model."""

    def value(*keys: str) -> Any:
        return _value(parts, *keys)

    colocated = value("train.colocate_all", "colocate_all_models")
    if trainer in ("dpo", "kto") and value("ref.offload", "ref_offload"):
        why = "a frozen reference model, on the host between its passes"
        parts.leave_out("ref.model_name_or_path", None, why, "none", "raises")
    if trainer in ("rm", "prm"):
        parts.leave_out("launcher.program", trainer, "values in place of logits", "lowers", "lowers")
    if not trainer.startswith("ppo"):
        return
    coefficient = value("algo.kl.init_coef", "init_kl_coef")
    shared = colocated or value("train.colocate_actor_ref", "colocate_actor_ref")
    if coefficient is None or number_of("algo.kl.init_coef", coefficient, "number") > 0:
        memory: Direction = "raises" if shared and not value("ref.offload", "ref_reward_offload") else "none"
        parts.leave_out("algo.kl.init_coef", coefficient, "a frozen reference model", memory, "raises")
    key = next((key for key in ("reward.model_name_or_path", "reward_pretrain") if key in parts.flat), None)
    if key and not value("reward.remote_url", "remote_rm_url"):
        memory = "raises" if colocated and not value("reward.offload", "ref_reward_offload") else "none"
        parts.leave_out(key, parts.flat[key], "a frozen reward model", memory, "raises")
    memory = "raises" if colocated else "none"
    apart = not colocated or value("train.async_enable", "async_train")  # cli/train_ppo_ray.py, train
    share = value("vllm.gpu_memory_utilization", "vllm_gpu_memory_utilization")
    sleeps = not apart and value("vllm.enable_sleep", "vllm_enable_sleep")  # weights on the host
    where = "on other GPUs" if apart else "asleep while the actor trains" if sleeps else ""
    why = f"the rollout engine, {where or 'which shares the GPUs'}"
    parts.leave_out(
        "vllm.gpu_memory_utilization", share, why, "none" if apart or sleeps else "raises", "raises"
    )
    estimator = value("algo.advantage.estimator", "advantage_estimator") or "gae"
    if estimator == "gae":
        parts.leave_out("algo.advantage.estimator", estimator, "a critic is trained, too", memory, "raises")


def parts_of(question: Question) -> Fields:
    """Return the parts of supervised fine-tuning; raises ValueError where it cannot express a question."""
    if set(question.offload) - {"optimizer"}:
        raise ValueError(f"OpenRLHF has no key for offload {question.offload}; it has optimizer")
    if question.pp * question.ep > 1 or question.shard_size:
        raise ValueError("OpenRLHF has no key for pp, ep and shard_size")
    adapters = question.adapters
    return {
        "_batch": question.global_batch_size or question.sequences_per_step(),
        "_offload": "optimizer" in question.offload,
        "_attention": words.attention_word(question),
        "_rank": adapters.rank if adapters else 0,
        "_modules": list(adapters.targets) if adapters and adapters.targets else "all-linear",
        "_4bit": adapters is not None and adapters.base == "nf4",
    }
