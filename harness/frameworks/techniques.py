"""A question's recipe as techniques of `python -m harness list techniques`, for a dry run."""

from __future__ import annotations

from typing import Any, NamedTuple

from harness.question import Direction, KeyRead, NamedTechnique, Question, whole_size

STEADY = 2
"""Micro-batches of a step after which each further one takes what the last did, but for 512 B of its loss.

A dry run of more takes longer; tests/suites/training/dry_run/test_steady_micro_batches.py compares them."""

BY_BLOCKS = ("torchtitan", "torchtune", "olmo_core")
"""Formats whose programs compile block by block."""

COMPILE_THE_LOSS = ("torchtitan", "torchtune")
"""Programs whose switch for torch.compile also compiles the loss, a function of its own."""

REDUCE_ONCE = ("accelerate", "axolotl", "hugging_face", "litgpt", "llama_factory", "ms_swift", "trl", "")
"""Formats whose trainers add up full gradients under FSDP and reduce them with the last micro-batch.

By no_sync of transformers' trainer (5.23.0) and accelerate, and litgpt's no_backward_sync; "": words,
whose runs are of these. The others call backward() alone, which reduces every micro-batch's: verl b178a3c
(workers/actor/dp_actor.py, trainer/fsdp_sft_trainer.py), Composer, torchtune, torchtitan, LLaMA-Factory v1
(core/base_trainer.py), OLMo-core (where only HSDP's all-reduce waits).
"""

CHECKPOINTING = "activation_checkpointing"


class ListedTechniques(NamedTuple):
    """The techniques of a question, and what of it they leave out, in words."""

    techniques: tuple[NamedTechnique, ...]
    left_out: tuple[str, ...]


def techniques_of(question: Question) -> ListedTechniques:
    """Return the techniques of a question without tensor, pipeline, context or expert parallelism.

    Raises ValueError with one line where it has such a layout, which the account of layouts answers, or where
    the number of devices is not known or does not divide.
    """
    sizes = {"tp": question.tp, "pp": question.pp, "cp": question.cp, "ep": question.ep}
    split = " × ".join(f"{name} {size}" for name, size in sizes.items() if size > 1)
    if split:
        raise ValueError(
            f"{question.format}: {split} is a layout, not a list of techniques; ask with layout="
        )
    left_out: list[str] = []
    techniques = (
        *_sharing(question, question.dp_of(), left_out),
        *_step(question, left_out),
        *_micro_batches(question.micro_batches(), left_out),
    )
    return ListedTechniques(techniques, tuple(left_out))


EXPERTS = "experts in one tensor stay in {}, as in transformers 5; linear layers, as before, are quantized"

WHOLE_MLP = {"mixtral": "w1 w2 w3", "minimax_m2": "w1 w2 w3", "minimax": "w1 w2 w3"} | dict.fromkeys(
    (
        *("deepseek_v2", "deepseek_v3", "dots1", "ernie4_5_moe", "flex_olmo", "glm4_moe", "glm4_moe_lite"),
        *("glm4v_moe", "hunyuan_v1_moe", "olmoe", "qwen3_moe", "qwen3_next"),
    ),
    "down_proj gate_proj up_proj",
)
"""By model_type, the names of an MLP's matrices with which PEFT 0.19 adapts the tensors of the experts, too.

(peft 0.19.1, utils/transformers_weight_conversion.py, convert_peft_config_for_transformers; of transformers
5.23.0, conversion_mapping.py, _MODEL_TO_CONVERSION_PATTERN)
"""


DENSE_NEXT_TO_EXPERTS = ("n_shared_experts", "shared_expert_intermediate_size", "first_k_dense_replace")
"""Sizes of a config whose model has linear layers of such names, too, outside of its experts."""


def approximated(question: Question) -> tuple[KeyRead, ...]:
    """Return what a dry run takes otherwise than the question has it, with its direction."""
    adapters, config = question.adapters, question.config or {}
    base, experts = (adapters.base, adapters.experts) if adapters else ("bf16", "bf16")
    found: list[KeyRead] = []

    def note(key: str, value: str, means: str, memory: Direction, **more: Any) -> None:
        read = {"key": key, "value": value, "means": means, "memory": memory, "seconds": "either"}
        found.append(KeyRead(status="not modelled", **read, **more))  # type: ignore[arg-type]

    if base == "int8" and (question.devices or 1) > 1 and question.zero == 3:
        note("base", base, "a quantized base, taken as a full copy per rank", "lowers")
    if base != "bf16" and question.has_experts and experts in ("bf16", "fp32"):
        least = (0.25 if base == "nf4" else 0.5) * (1 if experts == "bf16" else 0.5)
        note("base", base, EXPERTS.format(experts), "lowers", least=least)
    names = {*WHOLE_MLP.get(str(config.get("model_type")), "").split()}
    old = question.format.startswith("llama_factory")  # whose pyproject.toml has peft 0.18
    if names and adapters is not None and not old:
        dense = any(config.get(one) for one in DENSE_NEXT_TO_EXPERTS)
        listed = dense and question.format == "axolotl" and not adapters.targets  # find_all_linear_names
        if listed or names <= {*adapters.targets}:
            means = "PEFT 0.19 adapts the experts' tensors, too, and adds up both in one"
            note("targets", " ".join(sorted(names)), means, "raises")
    joint = config.get("model_type") in ("phi3", "glm4", "glm4v")
    if question.fused_layers and (joint or question.has_experts):
        means = "Liger fuses experts and joint gate and up layers, too, which are counted as they are"
        note("fused_layers", "true", means, "lowers")
    if of_two_stacks(question):
        means = "ZeRO-3 of an encoder and a decoder, taken as FSDP2's; a dry run of DeepSpeed's takes minutes"
        note("sharding", "zero3", means, "raises")
    if question.format == "llama_factory_v1":  # v1/core/base_trainer.py, compute_log_probs
        tokens = question.micro_batch_size * (question.seq_len or 0)
        most_B = 4.0 * tokens * (whole_size(config, "vocab_size") or 0)
        means = "logits are shifted in a further copy in fp32"
        note("logits", "fp32", means, "raises", most_B=most_B or None)
    return tuple(found)


def of_two_stacks(question: Question) -> bool:
    """Return whether DeepSpeed's ZeRO-3 shards an encoder and a decoder."""
    two = {"num_decoder_layers", "decoder_layers"} & {*(question.config or {})}
    return bool(two) and question.sharing == "zero" and question.zero == 3


def _sharing(question: Question, ranks: int, left_out: list[str]) -> list[NamedTechnique]:
    sharing, zero, adapters = question.sharing, question.zero, question.adapters
    alone: list[NamedTechnique] = [("ddp", {})] if ranks > 1 else []
    places = [one.partition(":") for one in question.offload]
    on = {what: where or "host" for what, _, where in places if what != "activations"}
    if adapters is not None and adapters.base in ("nf4", "int8") and sharing != "ddp":
        if adapters.base == "nf4" and zero == 3 and sharing == "zero":
            left_out.append("ZeRO-3 of a base in nf4, taken as FSDP2's, with every state on the host or none")
            sharing = "fsdp2"
        elif adapters.base == "int8" or sharing not in ("fsdp1", "fsdp2"):
            if zero == 3:
                left_out.append(f"{sharing} of a quantized base, which is taken as a full copy per rank")
            return alone
    if of_two_stacks(question):
        sharing = "fsdp2"
    if sharing in ("megatron", "nanotron") and zero:
        left_out.append(f"{sharing}'s own sharding of states, taken as deepspeed's zero {zero}")
        return [("zero", {"stage": zero})] if ranks > 1 else []
    if sharing not in ("fsdp1", "fsdp2", "zero"):
        return alone
    if ranks == 1 and not question.offload:
        return []
    if sharing == "zero" and zero == 3 and {"optimizer", "parameters"} <= on.keys():
        left_out.append("DeepSpeed's offload, taken as FSDP2's")
    elif sharing == "zero":
        if on:
            left_out.append(f"{' and '.join(on)} on the host, counted as the device's")
        elements = question.bucket_elements()
        return [("zero", {"stage": zero, **({"reduce_bucket": elements} if elements else {})})]
    once = question.micro_batches() > 1 and question.format in REDUCE_ONCE
    late: dict[str, Any] = {"reduce_every_micro_batch": False} if once else {}
    if sharing == "fsdp1" and adapters is not None and not adapters.flat:
        left_out.append("FSDP1's flat parameters, taken as FSDP2's, which adapters combine with")
    elif sharing == "fsdp1" and "parameters" in on:
        left_out.append("FSDP1's offload, taken as FSDP2's")
    elif sharing == "fsdp1":
        return [("fsdp1", {"strategy": "full_shard" if zero == 3 else "shard_grad_op", **late})]
    settings = {
        "reshard_after_forward": False if zero == 2 else None,
        "shard_within": question.shard_ranks() if question.shard_ranks() < ranks else None,
        "cpu_offload": "parameters" in on or None,
        **(late if question.format else {}),  # of words alone: as torch does by default
    }
    of_trainer = bool(question.format) and question.format in REDUCE_ONCE
    if of_trainer and question.states == "fp32" and question.precision != "fp32":
        settings["reduce_dtype"] = "bf16"  # in which accelerate and Fabric reduce, and so add up
    return [("fsdp2", {name: value for name, value in settings.items() if value is not None})]


def _step(question: Question, left_out: list[str]) -> list[NamedTechnique]:
    precision, recompute = question.precision, question.recompute
    offloaded = "activations" in question.offload
    if precision not in ("bf16", "fp16", "fp32", "fp8"):
        left_out.append(f"products in {precision}")
    on_host = {"on_host": True} if offloaded else {}
    full = {"mode": "full", "every": question.recompute_every, **on_host}
    full |= {"inputs_stay": True} if inputs_stay(question) else {}
    per_op = "per_op" if question.sharing in ("fsdp2", "ddp") else "selective"
    impl = question.optimizer_impl if question.optimizer == "adamw" else "fused"
    own_loss = question.compile and (question.format or question.framework) in COMPILE_THE_LOSS
    by_command = question.compile and question.origin("compile").kind == "command"  # else it is not traced
    generated = {"compiled": True} if own_loss else {}
    fused, wide = question.fused_loss, question.states == "fp32" or question.sharing == "zero"
    sharded = question.sharing in ("fsdp1", "fsdp2") or question.format in BY_BLOCKS
    broken = question.compile and broken_by(question.sharing, offloaded and recompute == "none")
    if broken:
        left_out.append(f"compile, whose graphs {broken} breaks")
    listed: tuple[tuple[bool, str, dict[str, Any]], ...] = (
        (not wide, "bf16_states", {}),
        (wide and precision != "fp32", "mixed_precision", {}),
        (precision == "fp8", "float8", {}),
        (question.attention != "explicit", "attention", {}),
        (recompute == "full", CHECKPOINTING, full),
        (recompute == "selective", CHECKPOINTING, {"mode": per_op, **on_host}),
        (offloaded and recompute == "none", "activation_offload", {}),
        (fused, "loss", {"fused": True}),
        (question.fused_layers and not by_command, "fused_layers", {}),
        (question.loss_chunks > 1 and not fused, "loss", {"chunks": question.loss_chunks, **generated}),
        (bool(generated) and question.loss_chunks == 1 and not fused, "loss", generated),
        (question.loss_in_place and not fused, "loss", {"chunked": "in_place"}),
        (question.adapters is not None, *_adapters(question, left_out)),
        (question.compile and not broken, "compile", {"scope": "blocks"} if sharded else {}),
        (question.optimizer_in_backward, "optimizer_in_backward", {}),
        (impl != "fused" and question.sharing != "zero", "optimizer", {"impl": impl}),
    )
    return [(name, settings) for on, name, settings in listed if on]


def inputs_stay(question: Question) -> bool:
    """Return whether recomputed layers' inputs and their gradients stay until the backward pass ends.

    So under FSDP1 with re-entrant checkpoints, where adapters are units of their own and the rest is frozen.
    """
    frozen = question.adapters is not None and not question.adapters.flat
    shared = question.sharing == "fsdp1" and question.dp_of() > 1
    return question.recompute == "full" and question.reentrant and frozen and shared


def broken_by(sharing: str, offloaded: bool) -> str:
    """Return whose hooks break compiled graphs, "" where none do; `offloaded`: activations go to the host."""
    hooks = {"zero": "DeepSpeed's engine", "fsdp1": "FSDP1"}.get(sharing, "")
    return hooks or ("offloading of activations" if offloaded else "")


def _adapters(question: Question, left_out: list[str]) -> NamedTechnique:
    adapters = question.adapters
    if adapters is None:
        return "lora", {}
    if adapters.prompts:
        stored = {"lightning": True, "double_quantization": adapters.double} if adapters.lightning else {}
        return "llama_adapter", {"version": adapters.prompts, "base": adapters.base, **stored}
    settings: dict[str, Any] = {"rank": adapters.rank, "base": adapters.base, "adapter_dtype": adapters.dtype}
    if any(not one.isidentifier() for one in adapters.targets):
        left_out.append(f"adapters by a pattern, {' '.join(adapters.targets)}; every linear layer is taken")
    elif adapters.targets:
        settings["targets"] = list(adapters.targets)
    if adapters.base != "bf16":
        settings |= {"experts": adapters.experts, "rest": adapters.rest}
        settings |= {} if adapters.double else {"double_quantization": False}
    settings |= {"dora": adapters.dora, "ends": adapters.ends, "lightning": adapters.lightning}
    settings["dropout"] = adapters.dropout
    usual = {
        "experts": "bf16",
        "rest": "bf16",
        "dora": False,
        "ends": False,
        "lightning": False,
        "dropout": 0,
    }
    return "lora", {name: value for name, value in settings.items() if usual.get(name) != value}


def _micro_batches(steps: int, left_out: list[str]) -> list[NamedTechnique]:
    if steps > STEADY:
        left_out.append(f"micro-batches {STEADY + 1} to {steps} of a step, which take what the second does")
    steps = min(steps, STEADY)
    return [("gradient_accumulation", {"steps": steps, "split": False})] if steps > 1 else []
