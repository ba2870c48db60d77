"""verl's training: Hydra's overrides of PPO, GRPO and SFT trainers, or their YAML.

Keys of an actor are read by the names that verl's newer SFT trainer has for the same: `engine.` for
`actor_rollout_ref.actor.fsdp_config.` and `.megatron.`, `model.` for `actor_rollout_ref.model.`.

Sources: verl commit b178a3c of January 2026 (trainer/config, workers/fsdp_workers.py,
workers/actor/dp_actor.py, workers/actor/megatron_actor.py, trainer/fsdp_sft_trainer.py,
trainer/sft_trainer.py, trainer/ppo/utils.py, experimental/fully_async_policy/ray_trainer.py,
experimental/one_step_off_policy/ray_trainer.py).
"""

from __future__ import annotations

import json
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

from harness.frameworks import megatron, words
from harness.frameworks.table import Fields, Flat, Parts, number_of, yaml_tree
from harness.question import Direction, KeyRead, Question

ACTOR = "actor_rollout_ref.actor."
OF_CONFIG = re.compile(r"\$\{[^}]*[.:].*\}")
"""OmegaConf's reference to another key, which has a dot or a resolver; a shell's variable has none."""

WITH_REFERENCE = (f"{ACTOR}use_kl_loss", "algorithm.use_kl_in_reward")
"""Switches of a divergence, which needs a reference model's log-probabilities."""

USUAL_RANK = 32
"""Of adapters whose own file is not there: the rank of verl's examples (examples/grpo_trainer)."""

FUSED = "log-probabilities overwrite the logits, of which this answer keeps copies in fp32"


def prepared(flat: Flat) -> Flat:
    """Return the values by the newer SFT trainer's names, with references to other keys filled in."""
    full, values, sections = words.filled(flat), dict[str, Any](), yaml_tree("verl")["sections"]
    if any(key.startswith(f"{ACTOR}megatron.") for key in flat):
        values["engine.strategy"] = "megatron"
    for key, value in flat.items():
        old = next((old for old in sections if key.startswith(old)), None)
        if key == f"{ACTOR}fsdp_config.strategy" or (
            key == f"{ACTOR}strategy" and "engine.strategy" in values
        ):
            continue  # the actor's own, or its sections', decides
        named = f"{sections[old]}{key.removeprefix(old)}" if old else key
        values[named] = full[key] if isinstance(value, str) and OF_CONFIG.fullmatch(value) else value
    return values


def settle(parts: Parts) -> Fields:
    """Return fields of Question."""
    by_prompts = any(key.startswith("actor_rollout_ref.") for key in parts.flat)
    older = "model.partial_pretrain" in parts.flat or "fsdp_sft" in str(parts.get("_program"))
    if "megatron" in f"{parts.get('_config')} {parts.flat.get('engine')} {parts.flat.get('defaults')}":
        parts.setdefault("_strategy_name", "megatron")
    strategy = parts.get("_strategy_name") or ("fsdp2" if older else "fsdp1")
    if by_prompts and "trainer.n_gpus_per_node" not in parts.flat:
        parts["_per_node"] = 8
    elif not by_prompts:  # torchrun's processes count
        parts["_per_node"] = parts.get("_processes") or parts.get("_per_node")
    if parts.get("_adapter") and strategy != "megatron":
        _with_saved_adapters(parts)
    if _is_split(parts):
        part = "_nodes" if parts.get("_nodes", 1) > 1 else "_per_node"
        parts[part] = max(1, parts[part] // 2)
    fields: Fields = {"devices": words.devices_of(parts)}
    fields |= _megatron(parts) if strategy == "megatron" else _fsdp(parts, strategy, older)
    if parts["_rank"] > 0:
        fields["adapters"] = words.adapters_of(parts, targets=words.targets_of(parts["_targets"]))
        if parts["_dtype"] == "fp32" and strategy != "megatron":
            why = "the frozen weights are in fp32, too; bf16 is taken"
            parts.leave_out("engine.model_dtype", "fp32", why, "raises", "raises")
    sizes = {name: parts[name] for name in ("tp", "pp", "cp")} | fields
    if strategy != "megatron":
        key = "engine.ulysses_sequence_parallel_size"
        fields |= words.shared_sequence(key, sizes["cp"], fields.get("adapters"), parts)
    ranks = (
        max(1, sizes["devices"] // (sizes["tp"] * sizes["pp"] * sizes["cp"])) if sizes["devices"] else None
    )
    fields |= (
        _batch_of_prompts(parts, ranks, sizes["cp"], strategy)
        if by_prompts
        else _batch(parts, ranks, sizes["cp"], older)
    )
    if ranks and fields.get("cp", 1) < sizes["cp"] and strategy != "megatron":
        at_once = fields["micro_batch_size"] * ranks
        fields["gradient_accumulation_steps"] = max(1, fields["global_batch_size"] // at_once)
    if not by_prompts:
        return fields | {"shorter": not older or _without_padding(parts)}
    _other_models(parts, strategy)
    estimator = parts.flat.get("algorithm.adv_estimator", "gae")
    with_reference = any(words.is_on(parts.flat.get(key)) for key in WITH_REFERENCE)
    recomputed = _recomputes_log_probabilities(parts)
    engine = parts.flat.get("actor_rollout_ref.rollout.name", "vllm")
    return fields | {
        "objective": "ppo" if estimator == "gae" else "grpo",
        "forward_passes": recomputed + with_reference,
        "rollout": words.rollout_of(engine != "hf"),
        # switched on after each rollout on the same GPUs (workers/fsdp_workers.py, megatron_workers.py)
        "expandable_segments": "expandable_segments" in parts or (engine != "hf" and not _on_own_gpus(parts)),
    }


def _with_saved_adapters(parts: Parts) -> None:
    """Take rank and layers of saved adapters, which are trained further, from their adapter_config.json.

    (workers/fsdp_workers.py and trainer/fsdp_sft_trainer.py: PeftModel.from_pretrained, is_trainable=True)
    """
    name, config = f"{parts['_adapter']}/adapter_config.json", dict[str, Any]()
    places = [Path(name), *([parts.beside / name] if parts.beside else [])]
    file = next((one for one in places if one.is_file()), None)
    if file is not None:
        read: Any = None
        with suppress(OSError, ValueError):
            read = json.loads(file.read_text())
        if not isinstance(read, dict):
            raise ValueError(f"{name}: it is no JSON object, of which adapters' rank is read")
        config = read
    parts["_targets"] = config.get("target_modules") or parts["_targets"]
    if config.get("r"):
        parts["_rank"] = number_of(f"{name}: r", config["r"], "count")
    if not parts["_rank"]:
        parts["_rank"] = USUAL_RANK
        why = f"rank {USUAL_RANK}: {name}, which has it, is not there"
        parts.assume("adapters", why)


def _without_padding(parts: Parts) -> bool:
    """Return whether the older SFT trainer, whose rows are padded to the longest, leaves padding away.

    (trainer/fsdp_sft_trainer.py, _compute_loss_and_backward: with ranks that share sequences alone)
    """
    return words.is_on(parts.flat.get("model.use_remove_padding")) and parts["_ulysses"] > 1


def _recomputes_log_probabilities(parts: Parts) -> bool:
    """Return whether old log-probabilities are computed anew, in place of those of the rollout."""
    flat, trainer = parts.flat, _asynchronous(parts)
    if trainer == "fully_async":
        own = words.is_on(flat.get("async_training.use_rollout_log_probs", True))
        return not own or words.is_on(flat.get("async_training.compute_prox_log_prob"))
    return not words.is_on(flat.get("algorithm.rollout_correction.bypass_mode", bool(trainer)))


def _asynchronous(parts: Parts) -> str:
    """Return which of the trainers is meant that generate on GPUs of their own; "" for another."""
    if any(key.startswith("async_training.") for key in parts.flat):
        return "fully_async"
    program = f"{parts.get('_program')} {parts.get('_config')}"
    return next((name for name in ("fully_async", "one_step_off") if name in program), "")


def _on_own_gpus(parts: Parts) -> bool:
    """Return whether answers are generated on other GPUs."""
    nodes = ("actor_rollout_ref.rollout.nnodes", "rollout.nnodes", "rollout.n_gpus_per_node")
    return bool(_asynchronous(parts)) or any(parts.flat.get(key) for key in nodes)


def _is_split(parts: Parts) -> bool:
    """Return whether a critic has the other half of the nodes, or of one node's GPUs.

    (examples/split_placement/main_ppo_split.py, whose configuration computes padding)
    """
    return "main_ppo_split" in str(parts.get("_program"))


def _fsdp(parts: Parts, strategy: str, older: bool) -> Fields:
    size, devices = parts["_shard_size"], words.devices_of(parts)
    offload = parts["_offload"] and strategy == "fsdp2"
    if older:
        offload = bool(parts.get("_cpu_offload"))
    parts["_offload"] = offload
    fields: Fields = {
        "sharing": strategy,
        "zero": 3 if parts["_reshard"] else 2,
        "cp": parts["_ulysses"],
        "states": parts["_dtype"],
        "optimizer_impl": "foreach",  # workers/config/optimizer.py, build_optimizer: torch's default
        "recompute": "full" if parts["_recompute"] else "none",
        "offload": words.offload_of(parts),
        "tp": 1,
        "pp": 1,
        "ep": 1,
        "sequence_parallel": False,
    }
    if size > 0 and devices and devices % size == 0:
        fields["replicas"] = devices // size
    elif size > 0:
        fields["shard_size"] = size
    if parts.get("_attention"):
        fields["attention"] = words.attention_of("attn_implementation", parts["_attention"], parts)
    return fields


def _megatron(parts: Parts) -> Fields:
    parts |= {"_bf16": parts["precision"] == "bf16", "_fp16": parts["precision"] != "bf16"}
    if not parts["_rank"]:  # utils/megatron_utils.py, get_model
        key = "engine.override_ddp_config.overlap_grad_reduce"
        megatron.name_late_reduction(parts, key)
    return megatron.core_fields(parts) | {"grouped_experts": parts["_grouped"]}


def _batch(parts: Parts, ranks: int | None, cp: int, older: bool) -> Fields:
    """Return the batch of an SFT trainer, whose newer one fills micro-batches with tokens by default.

    (trainer/sft_trainer.py, _build_dataloader: each rank takes the whole part; workers/engine/utils.py,
    prepare_micro_batches: as many equal chunks as there are whole micro-batches)
    """
    length, micro, whole = parts["_length"], parts.get("_micro", 4), parts.get("_batch", 256)
    of_rank = whole // (ranks or 1)
    if not older and of_rank:
        whole = of_rank * (ranks or 1)
    if parts.get("_dynamic", not older):
        micro = words.budget_of("data.max_token_len_per_gpu", parts["_tokens"] * cp, length, parts)
    elif older or not ranks or of_rank < micro or of_rank % (of_rank // micro):
        # trainer/fsdp_sft_trainer.py, _normalize_config_bsz; utils/tensordict_utils.py, chunk_tensordict
        words.name_undivided("data.micro_batch_size_per_gpu", whole, micro, ranks, "verl", parts)
    elif of_rank % micro:
        micro = of_rank // (of_rank // micro)
    return {"seq_len": length, **words.batch_fields(whole, micro, ranks)}


def _batch_of_prompts(parts: Parts, ranks: int | None, cp: int, strategy: str) -> Fields:
    """Return the batch of an update: of each prompt several responses.

    (workers/fsdp_workers.py, ActorRolloutRefWorker: micro-batches divide a rank's sequences under FSDP)
    """
    length, key = parts["_prompt"] + parts["_response"], f"{ACTOR}ppo_micro_batch_size_per_gpu"
    prompts = min(parts["_mini"], parts.get("_batch") or parts["_mini"])  # 0 of a trainer that streams them
    if prompts < parts["_mini"]:
        stops = "" if parts["_rl_dynamic"] else "; verl stops"  # workers/config/actor.py, validate
        why = f"the {prompts} prompts of data.train_batch_size are taken{stops}"
        parts.leave_out(f"{ACTOR}ppo_mini_batch_size", parts["_mini"], why, "none", "none")
    sequences = prompts * parts["_responses"]
    if parts["_rl_dynamic"]:
        micro = words.budget_of(f"{ACTOR}ppo_max_token_len_per_gpu", parts["_rl_tokens"] * cp, length, parts)
    elif parts.get("_rl_micro"):
        micro = parts["_rl_micro"]
    elif parts.get("_rl_micros") and ranks:
        micro, key = max(1, parts["_rl_micros"] // ranks), f"{ACTOR}ppo_micro_batch_size"
    else:
        micro = 1
        parts.miss("micro_batch_size", f"{key} is missing, from which a micro-batch follows")
    if strategy != "megatron" and not parts["_rl_dynamic"]:
        of_ranks = sequences - sequences % ranks if ranks else sequences  # each takes the whole part
        words.name_undivided(key, of_ranks, micro, ranks, "verl", parts)
    return {"seq_len": length, **words.batch_fields(sequences, micro, ranks)}


def _other_models(parts: Parts, strategy: str) -> None:
    """Name what an update of a policy adds to supervised training of it, which is what is predicted."""

    def on(key: str) -> bool:
        return words.is_on(parts.flat.get(key))

    if "model.use_remove_padding" not in parts.flat and not _is_split(parts):
        # trainer/config/model/hf_model.yaml, engine/megatron.yaml
        why = "no padding is computed, which is on where no key says otherwise"
        parts.leave_out("model.use_remove_padding", True, why, "none", "lowers")
    if not parts.get("fused_loss"):
        key = KeyRead(key=f"{ACTOR}loss", status="not modelled", means=FUSED, memory="lowers", to_states=True)
        parts.left_out.append(key)
    if not _on_own_gpus(parts):
        key_, share = "actor_rollout_ref.rollout.gpu_memory_utilization", 0.5
        kept = str(parts.flat.get("actor_rollout_ref.rollout.free_cache_engine", True)).lower() == "false"
        of = "which it keeps (free_cache_engine=False)" if kept else "in another phase, and what of it stays"
        why = f"the rollout engine's share of the GPU{',' if kept else ''} {of}"
        parts.leave_out(key_, parts.flat.get(key_, share), why, "raises", "raises")
    if any(on(key) for key in WITH_REFERENCE) and not parts["_rank"]:
        hosted = strategy != "megatron" or on("actor_rollout_ref.ref.megatron.param_offload")
        why = "a frozen reference model" + (", on the host but in its own phase" if hosted else "")
        parts.leave_out("actor_rollout_ref.ref", None, why, "none" if hosted else "raises", "raises")
    estimator = parts.flat.get("algorithm.adv_estimator", "gae")
    if estimator == "gae" or on("critic.enable"):
        memory: Direction = "none" if _is_split(parts) else "raises"
        parts.leave_out("algorithm.adv_estimator", estimator, "a critic is trained, too", memory, "raises")


def parts_of(question: Question) -> Fields:
    """Return the parts of verl's SFT trainer; raises ValueError where it cannot express a question."""
    adapters = question.adapters
    if adapters is not None and (adapters.base != "bf16" or adapters.dora):
        raise ValueError(f"verl has no key for adapters on {adapters.base} or DoRA")
    if question.sharing == "megatron":
        parts = megatron.parts_of(question)
    elif question.tp * question.pp * question.ep > 1:
        raise ValueError("verl has tp, pp and ep with sharing megatron alone")
    else:
        parts = {
            "_reshard": question.zero == 3,
            "_ulysses": question.cp,
            "cp": None,
            "_dtype": question.states,
        }
        parts["_recompute"] = question.recompute == "full"
    return {
        **parts,
        "_strategy_name": question.sharing,
        "_batch": question.global_batch_size or question.sequences_per_step(),
        "_dynamic": False,
        "_rank": adapters.rank if adapters else 0,
        "_targets": list(adapters.targets) or None if adapters else None,
        "_per_node": question.devices,
        "_attention": "eager" if question.attention == "explicit" else None,
    }
