"""Megatron-LM's arguments: a command line, a shell script, or YAML.

Sources: Megatron-LM commit d98e8a6 of August 2026 (megatron/training/arguments.py,
megatron/core/transformer/transformer_config.py, megatron/core/model_parallel_config.py) and its examples.
"""

from __future__ import annotations

import math
import re

from harness.frameworks.architectures import EXPERTS
from harness.frameworks.megatron_model import layers_of_pattern, model_config, model_parts
from harness.frameworks.models import model_of
from harness.frameworks.table import Fields, Flat, Parts, is_off, kind_of, number_of, yaml_tree
from harness.frameworks.words import devices_of, optimizer_of
from harness.question import Question

SECTIONS = re.compile(r"^(?:MODEL_ARGS\.)?(?:language_model\.)?(?:model_parallel\.)?")
"""Of its tests' model_config.yaml and of --yaml-cfg."""

ALLOCATOR = "ENV_VARS.PYTORCH_CUDA_ALLOC_CONF"
"""Of its tests' model_config.yaml."""

PRECISIONS: dict[str, Fields] = {
    "bf16": {"_bf16": True},
    "fp16": {"_fp16": True},
    "fp32": {},
    "fp8": {"_bf16": True, "_fp8": "hybrid"},
    "mxfp8": {"_bf16": True, "_fp8": "e4m3", "_fp8_recipe": "mxfp8"},
    "nvfp4": {"_bf16": True, "_fp4": "e2m1"},
}


def prepared(flat: Flat) -> Flat:
    """Return the values by the names that argparse gives them."""
    expandable = "expandable_segments:True" in str(flat.get(ALLOCATOR))
    more = {"launcher.expandable_segments": True} if expandable else {}
    values = {
        SECTIONS.sub("", key).lstrip("-").replace("-", "_"): value for key, value in flat.items()
    } | more
    if "img_h" in values and "decoder_seq_length" in values:  # seq_length is then an image's
        values["seq_length"] = values.pop("decoder_seq_length")
    if "num_query_groups" in values:  # which Megatron-LM does not look at without the switch
        values.setdefault("group_query_attention", False)
    return values


def spelled(flat: Flat) -> Flat:
    """Return the values as options of a command line."""
    return {key.replace("_", "-"): value for key, value in flat.items() if value is not False}


def settle(parts: Parts) -> Fields:
    """Return fields of Question; raises ValueError for what is no language model in training."""
    fields = settled(parts)
    _switched_off(parts, fields)
    return fields


def settled(parts: Parts) -> Fields:
    """Return fields of Question, of Megatron Bridge and NeMo, too; raises ValueError as `settle` does."""
    _refuse_other(parts.flat)
    if _precision(parts) == "fp16" and not parts.get("_accumulated"):
        parts.setdefault("_wide_grads", False)  # megatron/training/arguments.py: the default of bf16 alone
    return fields_of(parts)


def name_late_reduction(parts: Parts, key: str = "overlap_grad_reduce", gathers: str = "") -> None:
    """Name gradients, or else parameters that the key `gathers` overlaps, which wait for the whole pass.

    Question.undivided takes the name away where no other rank has the same parameters.
    """
    if is_off(parts.flat.get(key)):
        why = "gradients are reduced after the backward pass; they are predicted to be so within it"
        parts.leave_out(key, None, why, "none", "raises", field="sharing")
    elif gathers and is_off(parts.flat.get(gathers)):
        why = "parameters are gathered before the forward pass; they are predicted to be so within it"
        parts.leave_out(gathers, None, why, "none", "raises", field="sharing")


MASK_B = 5e8
"""Bytes of a mask that are named: below them it is a hundredth of a device's memory at most."""


def _switched_off(parts: Parts, fields: Fields) -> None:
    """Name what an argument that is not given leaves off, where the answer has it on.

    (training/arguments.py; core/utils.py, get_batch_on_this_tp_rank: the mask has sequence² bytes)
    """
    if fields["sharing"] == "megatron":
        gathers = "overlap_param_gather" if fields["zero"] == 1 else ""
        name_late_reduction(parts, gathers=gathers)
    if (parts.get("_fp8") or parts.get("_fp4")) and not (parts["_bf16"] or parts["_fp16"]):
        parts.leave_out("bf16", None, "all but products is in fp32; bf16 is taken", "raises", "raises")
    mask_B = parts["micro_batch_size"] * (parts.get("seq_len") or 0) ** 2
    if mask_B > MASK_B and not parts.flat.get("no_create_attention_mask_in_dataloader"):
        why = "the data come with a mask of every token and every other"
        parts.leave_out("create_attention_mask_in_dataloader", None, why, "raises", "raises", most_B=mask_B)


def fields_of(parts: Parts) -> Fields:
    """Return fields of Question from Megatron-Core's parts, of whatever file."""
    precision, (layers, stages) = _precision(parts), _stages(parts)
    on_host = {"optimizer": parts.get("_offload_states"), "activations": parts.get("_offload_activations")}
    fields: Fields = {
        **_sharing(parts),
        "precision": precision,
        "virtual_stages": stages,
        "schedule": "interleaved1f1b" if stages > 1 else "1f1b",
        "layers_of_stages": layers,
        "sequence_parallel": parts["sequence_parallel"] and parts["tp"] > 1,
        "deferred_head_gradients": (parts.get("_deferral") or 0) if parts.get("_deferred") else None,
        **_recompute(parts, stages),
        **_experts(parts),
        "attention": _attention(parts, precision),
        "config": model_config(parts),
        "devices": devices_of(parts),
        "offload": tuple(name for name, on in on_host.items() if on),
        **_states(parts, precision),
    }
    if "_optimizer" in parts:
        name = str(parts["_optimizer"]).removeprefix("dist_")  # dist_muon shards its states by whole layers
        fields["optimizer"] = optimizer_of("optimizer", name, parts)
    if "_schedule" in parts:
        fields |= _scheduled(parts)
    return fields | {"model_source": "sizes in the file" if fields["config"] else ""}


def core_fields(parts: Parts) -> Fields:
    """Return what Megatron-Core's parts say where another framework's keys give the model and the devices."""
    parts["_impl"] = "transformer_engine"
    others = ("config", "devices", "model_source")
    return {name: one for name, one in fields_of(parts).items() if name not in others}


STAGE = re.compile(r"(\d+\.?\d*)([KMBT]?):([1-9]\d*\.?\d*)([KMBT]?)", re.IGNORECASE)
"""A stage of step_batch_size_schedule: the tokens before it and its sequences per step."""

TIMES = {"": 1, "K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}

MOST_TOKENS = 1e30
"""Of a schedule's number with the largest unit."""


def _scheduled(parts: Parts) -> Fields:
    """Return the batch of the last stage of a schedule that training reaches; a batch that is given stays.

    (core/num_microbatches_calculator.py, StepBatchsizeNumMicroBatchesCalculator; training/global_vars.py
    gives it the sequence's length, so that its thresholds are tokens)
    """
    key, value, length = "step_batch_size_schedule", parts["_schedule"], parts.get("seq_len") or 1
    text = " ".join(value) if isinstance(value, list) else str(value)
    found = [STAGE.fullmatch(one) for one in text.replace(",", " ").split()]
    if not all(found) or not found:
        raise ValueError(f"{key} is {text!r}; it must be as 0:768 250B:1536")
    numbers = [one.groups() for one in found if one]
    if any(float(one) * TIMES["T"] > MOST_TOKENS for row in numbers for one in (row[0], row[2])):
        raise ValueError(f"{key} is {text[:40]!r}; a number in it is above {MOST_TOKENS / TIMES['T']:,.0f}")
    stages = sorted(
        (int(float(start) * TIMES[unit.upper()]) // length, int(float(size) * TIMES[units.upper()]))
        for start, unit, size, units in numbers
    )
    given = {name: parts.flat.get(name) for name in ("train_samples", "train_iters")}
    samples, steps = (number_of(name, value, "int") if value else math.inf for name, value in given.items())
    reached, done = stages[0][1], 0
    for start, size in stages:
        before = max(0, -(-(start - done) // reached))
        steps, done = steps - before, done + before * reached
        if start >= samples or steps <= 0:
            break
        reached = size
    taken = parts.get("global_batch_size", reached)  # Megatron-LM takes one of both alone
    parts.leave_out(key, text, f"the batch grows; {taken} sequences per step are taken", "none", "lowers")
    return {"global_batch_size": taken}


GENERATES = ("num_tokens_to_generate", "prompts", "prompt_file", "max_tokens_to_oom")
TRAINS = ("train_iters", "train_samples", "global_batch_size", "lr")
"""Keys of a file that generates text, and of one that trains."""


def _refuse_other(flat: Flat) -> None:
    """Raise ValueError, with what it is, for a file that trains no language model of attention and MLPs."""
    table = yaml_tree("megatron")
    kinds = dict(table["kinds"])
    given = {key: value for key, value in flat.items() if not is_off(value)}
    patterned = any(given.get(key) for key in ("hybrid_layer_pattern", "hybrid_override_pattern"))
    if not patterned:
        kinds["a hybrid of state-space layers, without hybrid_layer_pattern"] = table["hybrids"]
    if found := kind_of(given, kinds):
        raise ValueError(f"{found[1].replace('_', '-')} {str(found[2])[:40]}: it is {found[0]}")
    generates = next((key for key in GENERATES if flat.get(key)), None)
    if generates and not any(flat.get(key) for key in TRAINS):
        raise ValueError(f"{generates.replace('_', '-')}: it generates text and trains nothing")


def _sharing(parts: Parts) -> Fields:
    sharded = parts["_distributed"] or str(parts.get("_optimizer")).startswith("dist_")
    fields: Fields = {"sharing": "megatron", "zero": 1 if sharded else 0}
    if parts.get("_fsdp"):
        fields["zero"] = parts["_strategy"]
    if parts.get("_torch_fsdp2"):
        fields |= {"zero": 2 if parts.get("_no_reshard") else 3, "sharing": "fsdp2", "program": "torchtitan"}
    stage = parts.get("_zero_stage")
    if stage is not None:
        if stage not in (0, 1, 2, 3):
            raise ValueError(f"zero_stage is {stage}; it must be 0, 1, 2 or 3")
        fields |= {"zero": stage, "sharing": "zero" if stage else "megatron"}
    return fields


def _attention(parts: Parts, precision: str) -> str:
    """Return attention's kernel: "auto" of Transformer Engine is its own fused one, but in fp32.

    (transformer_engine/pytorch/attention/dot_product_attention/utils.py, get_attention_backend)
    """
    backend = parts["_backend"]
    local = parts["_impl"] == "local" and backend == "auto" and not parts.get("_flash")
    if local or precision == "fp32" or backend in ("unfused", "local"):
        rates = (parts.get("_dropout") or 0, parts.get("_attention_dropout") or 0)
        if bool(rates[0]) != bool(rates[1]):
            why = (
                "dropout of the scores alone, or of the rest; taken as both or none, as hidden_dropout has it"
            )
            parts.leave_out("attention_dropout", rates[1], why)
        return "explicit"
    own = parts["_impl"] == "local" and parts.get("_flash")  # Transformer Engine does not look at it
    return "flash_attention" if backend == "flash" or own else "flash"


def _stages(parts: Parts) -> tuple[tuple[int, ...], int]:
    """Return every stage's layers, () where all are alike, and the stages per pipeline rank."""
    layout, pattern = parts.get("_layout"), str(parts.get("_pattern") or "")
    if layout:
        return _listed("pipeline_model_parallel_layout", layers_of_layout(str(layout)), parts["pp"])
    if "|" in pattern.partition("/")[0]:
        return _listed("hybrid_layer_pattern", layers_of_pattern(pattern), parts["pp"])
    stages = _virtual_stages(parts)
    return _layers_of_stages(parts, stages), stages


def _listed(key: str, layers: tuple[int, ...], pp: int) -> tuple[tuple[int, ...], int]:
    """Return the stages that a key lists; raises ValueError where they do not divide."""
    if len(layers) % pp:
        raise ValueError(f"{key} has {len(layers)} stages, no multiple of pipeline_model_parallel_size {pp}")
    return layers if pp > 1 else (), len(layers) // pp


REPEATED = re.compile(r"\(([^()]+)\)\*(\d+)|([^|(),*])\*(\d+)")
"""Stages or layers of a layout of pipelines that are repeated."""


def layers_of_layout(layout: str) -> tuple[int, ...]:
    """Return the layers of every stage of a --pipeline-model-parallel-layout, as Et*2|(tt|)*5t|tmL.

    t is a layer, E the embedding, m one of multi-token prediction, L the loss, | ends a stage
    (core/transformer/pipeline_parallel_layer_layout.py). Raises ValueError for anything else.
    """
    text, before = re.sub(r"""[\s,"'\\]""", "", layout), ""
    while before != text and len(text) < LONGEST_LAYOUT:
        before, text = (
            text,
            REPEATED.sub(lambda one: (one[1] or one[3]) * min(int(one[2] or one[4]), 999), text),
        )
    if not set(text) <= set("EtmL|"):
        raise ValueError(f"pipeline_model_parallel_layout is {layout[:60]!r}; it has E, t, m, L, | and *n")
    return tuple(stage.count("t") for stage in text.split("|"))


LONGEST_LAYOUT = 100_000
"""Letters of a layout."""


def _layers(parts: Parts) -> int | None:
    """Return the model's layers, of the file's own sizes or of the published model that it names."""
    if given := parts.get("_num_hidden_layers") or parts.get("_layers"):
        return int(given)
    model = model_of(str(parts["model_name"]), parts.beside) if parts.get("model_name") else None
    return model.config.get("num_hidden_layers") if model else None


def _virtual_stages(parts: Parts) -> int:
    pp, layers, per_stage = parts["pp"], _layers(parts), parts.get("_layers_per_virtual")
    if pp == 1:
        return 1
    if parts.get("_virtual") or not per_stage:
        return int(parts.get("_virtual") or 1)
    if not layers:
        raise ValueError("num_layers_per_virtual_pipeline_stage is given, but num_layers is missing")
    layers += bool(parts.get("_with_embedding")) + bool(parts.get("_with_loss"))
    if layers % (pp * per_stage):
        raise ValueError(
            f"num_layers {layers} is no multiple of pipeline_model_parallel_size {pp} × "
            f"num_layers_per_virtual_pipeline_stage {per_stage}"
        )
    return int(layers // (pp * per_stage))


UNEVEN = {
    "_first": "decoder_first_pipeline_num_layers",
    "_last": "decoder_last_pipeline_num_layers",
    "_with_embedding": "account_for_embedding_in_pipeline_split",
    "_with_loss": "account_for_loss_in_pipeline_split",
}
"""Keys by part that make the first or the last stage another size (core/transformer/transformer_block.py)."""


def _layers_of_stages(parts: Parts, virtual_stages: int) -> tuple[int, ...]:
    """Return every stage's layers where the first or the last has another number; () where all are alike.

    core/transformer/transformer_block.py, get_num_layers_to_build.
    """
    given = {part: parts[part] for part in UNEVEN if parts.get(part)}
    pp, layers = parts["pp"], _layers(parts)
    if not given or pp == 1:
        return ()
    if not layers:
        why = "the model's layers are not known here, of which the stages' follow; equal stages are taken"
        parts.leave_out(UNEVEN[next(iter(given))], next(iter(given.values())), why)
        return ()
    embedding, loss = "_with_embedding" in given, "_with_loss" in given
    first, last = given.get("_first"), given.get("_last")
    others = pp - bool(first) - bool(last)
    each = (layers + embedding + loss - (first or 0) - (last or 0)) / (others or 1)
    of_ranks = [first or each, *[each] * (pp - 2), last or each]
    sizes = [size / virtual_stages for size in of_ranks] * virtual_stages
    sizes[0] -= embedding
    sizes[-1] -= loss
    if any(size != int(size) or size < 0 for size in sizes) or sum(sizes) != layers:
        keys = ", ".join(f"{UNEVEN[part]} {value}" for part, value in given.items())
        raise ValueError(
            f"num_layers {layers} on pipeline_model_parallel_size {pp} with {keys} gives no stages"
        )
    return tuple(map(int, sizes))


def _precision(parts: Parts) -> str:
    if parts.get("_fp4"):
        return "nvfp4"
    if parts.get("_fp8"):
        return "mxfp8" if parts.get("_fp8_recipe") == "mxfp8" else "fp8"
    return "bf16" if parts["_bf16"] else "fp16" if parts["_fp16"] else "fp32"


def _states(parts: Parts, precision: str) -> Fields:
    """Return in what gradients are summed, and what is kept of masters (core/optimizer)."""
    narrow = parts.get("_narrow_grads") or parts.get("_wide_grads") is False or parts.get("_grads") == "bf16"
    if parts.get("_fsdp"):  # which looks at its own key alone, by default the type of the parameters
        narrow = precision != "fp32" and parts.get("_fsdp_grads", "bf16") == "bf16"
        sent = str(parts.get("_fsdp_sent", "auto")).removeprefix("torch.")
        if sent not in ("auto", *(("bf16", "bfloat16") if narrow else ("fp32", "float32"))):
            why = "gradients are sent in another type than they are summed in, from buffers of their own"
            parts.leave_out("megatron_fsdp_grad_comm_dtype", sent, why, "raises")
    wide = parts.get("_masters", "fp32") == "fp32" and precision not in ("fp16", "fp32")
    remainders = bool(parts.get("_aware")) and wide
    return {"gradients": "bf16" if narrow else "fp32", "master_remainders": remainders}


def _recompute(parts: Parts, stages: int) -> Fields:
    """Return what is recomputed, and the modules that "selective" names."""
    granularity, method = parts.get("_granularity"), parts.get("_method")
    units = parts.get("_recompute_layers")
    if parts.get("_recompute_activations") or parts.get("_moe_recompute"):
        granularity = "selective"
    if parts.get("_checkpoint_activations") or (granularity is None and method):
        granularity = "full"
    all_layers = (units or 1) * parts["pp"] * stages >= (_layers(parts) or math.inf)
    if granularity == "full" and method == "block" and not all_layers:
        why = "some layers per stage alone are recomputed; all are taken"
        parts.leave_out("recompute_method", "block", why, "raises", "lowers")
    if granularity == "full" and method == "uniform" and (units or 1) > 1:
        why = "several layers are one unit of recomputation; one is taken"
        parts.leave_out("recompute_num_layers", units, why)
    if granularity != "selective":
        return {"recompute": granularity or "none"}
    modules = parts.get("_modules") or "core_attn"
    names = modules.strip("[]").replace(",", " ").split() if isinstance(modules, str) else modules
    modules = [*dict.fromkeys(map(str, names))]
    if parts.get("_moe_recompute") and "moe" not in modules:
        modules.append("moe")
    if modules == ["core_attn"]:
        return {"recompute": "selective", "recompute_modules": ()}
    return {"recompute": "selective", "recompute_modules": tuple(modules)}


DISPATCHERS = {"alltoall": "alltoall", "allgather": "allgather", "flex": "deepep"}
NAMES_OF_DISPATCHERS = {ours: theirs for theirs, ours in DISPATCHERS.items()}


def _experts(parts: Parts) -> Fields:
    """Return how tokens reach their experts, by allgather where that is left out, and how these multiply."""
    named, backend = str(parts.get("_dispatcher") or "allgather"), str(parts.get("_flex") or "deepep")
    dispatcher = DISPATCHERS.get(named, "alltoall")
    if named not in DISPATCHERS:
        parts.leave_out("moe_token_dispatcher_type", named, "another program's dispatcher, taken as alltoall")
    if dispatcher == "deepep" and backend != "deepep":
        parts.leave_out("moe_flex_dispatcher_backend", backend, "taken as deepep")
    if not parts.get("_num_experts"):
        return {"dispatcher": dispatcher} if parts.get("_dispatcher") else {}
    capacity = parts.get("_capacity")
    if parts.get("_pad_capacity") and not capacity:
        raise ValueError("moe_pad_expert_input_to_capacity needs moe_expert_capacity_factor")
    return {
        "dispatcher": dispatcher,
        "grouped_experts": bool(parts.get("_grouped")),
        "capacity_factor": capacity if capacity and capacity > 0 else None,
        "imbalance": _imbalance(parts),
    }


BALANCED = {"sinkhorn": 1.04, "quantile_balancing": 1.04}
"""Tokens of the rank with the busiest experts over the mean, by --moe-router-load-balancing-type; fitted to
published peaks of Megatron-LM's tests."""


def _imbalance(parts: Parts) -> float | None:
    """Return the tokens of the busiest rank over the mean where the file decides them."""
    if parts.get("_pad_capacity"):
        return float(parts["_capacity"])
    return 1.0 if parts.get("_forced") else BALANCED.get(str(parts.get("_balancing")).strip("[]'\" "))


def parts_of(question: Question) -> Fields:
    """Return Megatron-LM's parts of a question; raises ValueError where they cannot express it."""
    config, stages = question.config or {}, question.layers_of_stages
    listed = bool(stages) and (question.virtual_stages > 1 or len(set(stages[1:-1])) > 1 or not all(stages))
    routed = any(config.get(name) for name in EXPERTS) or question.ep > 1
    full = question.recompute == "full"
    return {
        **model_parts(question.config),
        "etp": question.etp if question.etp != question.tp else None,
        "_first": stages[0] if stages and not listed else None,
        "_last": stages[-1] if len(stages) > 1 and not listed else None,
        "_layout": f"E{'|'.join('t' * layers for layers in stages)}L" if listed else None,
        "_virtual": question.virtual_stages if question.virtual_stages > 1 and not listed else None,
        "global_batch_size": _global_batch(question),
        "_granularity": None if question.recompute == "none" else question.recompute,
        "_method": "uniform" if full else None,
        "_recompute_layers": 1 if full else None,
        "_modules": list(question.recompute_modules) or None,
        "dispatcher": question.dispatcher if routed else None,
        "_dispatcher": NAMES_OF_DISPATCHERS[question.dispatcher] if routed else None,
        "_grouped": question.grouped_experts or None if routed else None,
        "_backend": {"explicit": "unfused", "flash_attention": "flash"}.get(question.attention),
        "_optimizer": {"adamw": "adam", "sgd_momentum": "sgd"}.get(question.optimizer, question.optimizer),
        "_offload_states": "optimizer" in question.offload or None,
        "_deferred": question.deferred_head_gradients is not None or None,
        "_deferral": question.deferred_head_gradients or None,
        "_capacity": question.capacity_factor,
        **_balance_parts(question),
        "_narrow_grads": (question.gradients == "bf16" and question.precision != "fp16") or None,
        "_fsdp_grads": question.gradients if question.zero > 1 and question.sharing != "fsdp2" else None,
        "_accumulated": (question.gradients == "fp32" and question.precision == "fp16") or None,
        "_aware": question.master_remainders or None,
        **_sharing_parts(question),
        **PRECISIONS[question.precision],
    }


def _balance_parts(question: Question) -> Fields:
    """Return how tokens are spread over experts: the inverse of `_imbalance`."""
    imbalance = question.imbalance
    if imbalance is None:
        return {}
    if imbalance == question.capacity_factor:
        return {"_pad_capacity": True}
    return {"_forced": True} if imbalance == 1 else {"_balancing": "sinkhorn"}


def _sharing_parts(question: Question) -> Fields:
    if question.sharing == "fsdp2" and question.zero in (2, 3):
        return {"_torch_fsdp2": True, "_no_reshard": question.zero == 2 or None}
    if question.zero in (0, 1):
        return {"_distributed": bool(question.zero)}
    return {"_fsdp": True, "_distributed": True, "_strategy": question.zero}


def _global_batch(question: Question) -> int | None:
    if question.global_batch_size is not None or question.gradient_accumulation_steps is None:
        return question.global_batch_size
    try:
        return question.micro_batch_size * question.gradient_accumulation_steps * question.dp_of()
    except ValueError as error:
        why = "global_batch_size follows from the data-parallel ranks"
        raise ValueError(f"Megatron-LM's {why}: {error}") from error
