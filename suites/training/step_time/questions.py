"""Published runs as questions, and answers to published steps.

A public run is a row whose fields lie side by side, with the words of `published/words.yaml`; `flat` has rows
of an older form so. Answers have seconds with an interval, memory, and the fastest layout that fits.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from harness.config.hf_config import HEADS
from harness.question import FieldOrigin, KeyRead, Question, question_of
from suites.training.layouts.layout import Layouts
from suites.training.layouts.shape_of_config import SIZES_NEEDED
from suites.training.of_question import layout_row, setting, shape_of, training_of
from suites.training.step_time.constants import StepConstants
from suites.training.step_time.gpu import gpu_of, known_gpu
from suites.training.step_time.prediction import PlannedSteps, PredictedSteps, interval_of, planned, predicted
from suites.training.step_time.published.typed import (
    Row,
    common_fields,
    config_of_sizes,
    is_mlperf,
    is_recipe,
    layout_fields,
    letters,
    meaning,
    program_of,
    refuse_hybrid,
    run_facts,
    sharding_of,
    table,
)

MEGATRON_STAGES = 1
"""Highest ZeRO stage of Megatron-LM's distributed optimizer."""

OF_PROMPTS = (("mini_batch", "train_batch_size", "train_batch"), ("rollout_n",))
"""Of a run's `other`: prompts per update, and answers to each (verl)."""

DISPATCHING = ("megatron", "torchtitan")
"""Programs that send tokens to experts by more than one dispatcher."""

LOSS_CHUNKS = 8
"""Of a loss in chunks whose number is not stated: the default of torchtitan and torchtune."""

UNSLOTH_FUSED = "2024-11"
"""Unsloth's first release whose output layer and loss are one operation (arXiv 2411.09009)."""

TRAINER_FUSED = "2025-08"
"""transformers 4.56, whose default optimizer is adamw_torch_fused from torch 2.8 on (training_args.py)."""

TRANSFORMERS_5 = "2025-12"
"""From it on a layer's experts are one tensor, not linear layers that are quantized, and checkpoints are not
re-entrant (modeling_utils.py, activation_checkpointing_enable)."""

WITHOUT_ENGINE = re.compile(
    r"\b(no|without|not) +(vllm|sglang)|\b(use_)?(vllm|sglang)\W{1,4}(off|false|no|none)\b", re.IGNORECASE
)
"""How a run's row says that no engine generates."""

GELU_OF = {"phi": "gelu_new"}
"""Activations of transformers' configurations by default, whose code has an operation per term."""

PEFT_WIDENS = "2024-07"
"""peft 0.12, whose adapters of a 16-bit base are fp32 (autocast_adapter_dtype); before they had its type."""

FORCED = re.compile("^forced?")
"""How a run's row says that every expert gets as many tokens."""

ConfigOf = Callable[[str], Mapping[str, Any] | None]
"""The content of a config.json by a model's name."""


def question_of_row(row: Row, config_of: ConfigOf = lambda name: None) -> Question:
    """Return a published run as a question; raises ValueError in one line for what it does not know.

    Users of Megatron Bridge run its library's recipes, which keep whole master weights and, but for a few,
    add gradients up in fp32 (recipes/common.py at commit 067f987); vendors' tables have those for speed, and
    a row of one says so: `performance_recipe` of its `other`.

    `config_of`: of a name, the config.json of a well-known model, for rows that state no sizes, and in place
    of the sizes where these agree.
    """
    row = stated(row)
    for name in ("model", "device", "gpus", "framework"):
        if not row.get(name):
            raise ValueError(f"{name}: not stated")
    device = device_fields(str(row["device"]))
    gpu = gpu_of(device["device"])
    assert gpu is not None
    common = common_fields(row, gpu, config_of_run(row, config_of))
    shared = shared_sequences(row, common)
    checkpointing = row.get("recompute", row.get("checkpointing"))
    layout = layout_fields({**row, **shared, "recompute": checkpointing}, common)
    if not row.get("vp") and (layout["gradient_accumulation_steps"] or 0) % layout["pp"]:
        layout["virtual_stages"] = 1  # interleaved ones would need a multiple
    given = {name: keys[0] for name, keys in KEYS.items() if any(row.get(key) is not None for key in keys)}
    own = fields_of_run(row, common)
    memory = memory_fields(row, own["program"], checkpointing)
    for_speed = is_mlperf(row) or (row.get("other") or {}).get("performance_recipe")
    if own["program"] == "megatron" and not for_speed:
        narrow = is_recipe(row) and meaning("narrow_gradients", letters(row["model"]), False)
        memory |= {"gradients": "bf16" if narrow else "fp32", "master_remainders": False}
    fields = {**common, **layout, **device, **own, **memory}
    if stages := uneven(common, layout):
        fields |= {"layers_of_stages": stages, "virtual_stages": 1}
    fields["origins"] = {name: FieldOrigin("key", key) for name, key in given.items()}
    for name in ("tp", "cp"):
        if layout[name] > int(row.get(name) or 1):
            fields["origins"][name] = FieldOrigin("assumption", "the batch has fewer sequences than GPUs")
    if "memory_B" in device:
        fields["origins"]["device"] = FieldOrigin("assumption", "nothing but its memory is stated")
    fields |= objective_fields(row, fields)
    fields |= {"model_name": str(row["model"]), "keys": tuple(unmodelled(row))}
    fields["of_micro_batch"] = "one micro-batch" in str((row.get("other") or {}).get("step_is"))
    return question_of(**fields)


def objective_fields(row: Row, fields: Row) -> dict[str, Any]:
    """Return what a run's row says of its method: its passes, who generates answers, and shorter sequences.

    A pair is two sequences, a batch's as well.
    """
    method = str(row.get("method") or "")
    objective = meaning("objectives", method, "sft")
    own: dict[str, Any] = {
        "objective": objective,
        "forward_passes": meaning("forward_passes", method, 0),
        "shorter": meaning("shorter", row.get("padded_or_packed"), False),
    }
    other = row.get("other") or {}
    prompts, answers = (next((other[key] for key in keys if other.get(key)), 0) for keys in OF_PROMPTS)
    if prompts and answers and not fields.get("global_batch_size"):
        micro, dp = fields["micro_batch_size"], fields["dp"]
        own["global_batch_size"] = prompts * answers
        own["gradient_accumulation_steps"] = max(1, round(prompts * answers / micro / dp))
    hosted = "verl" in str(row["framework"]).lower()  # fsdp_workers.py: the reference policy is on the host
    if fields["adapters"] is None and own["forward_passes"] and not hosted:
        own["reference_weight_B"] = 2
    if objective in ("grpo", "ppo"):
        own["rollout"] = rollout_of(row)
        own["forward_passes"] += meaning("old_probabilities", row["framework"], 0)
    if objective == "dpo":
        sizes = {name: fields.get(name) for name in ("micro_batch_size", "global_batch_size")}
        own |= {name: 2 * size for name, size in sizes.items() if size}
    return own


def rollout_of(row: Row) -> Any:
    """Return what generates answers within a step: an engine that is named, else the model itself."""
    words = WITHOUT_ENGINE.sub("", f"{row['framework']} {row.get('other') or ''}")
    return meaning("rollouts", words, "transformers")


def shared_sequences(row: Row, common: Row) -> dict[str, Any]:
    """Return tensor-parallel ranks for a batch of fewer sequences than GPUs, where no layout is stated.

    As many as share a sequence, within a node, and divide the heads; of more `layout_fields` makes
    context-parallel ranks.
    """
    config, alone = common["config"], int(row["gpus"]) * int(row.get("micro_batch_size") or 1)
    batch = int(row.get("global_batch_size") or 0)
    if not 0 < batch < alone or alone % batch or any(row.get(name) for name in ("dp", "tp", "pp", "cp")):
        return {}
    heads = next((int(config[name]) for name in HEADS if config.get(name)), 1)
    groups = int(config.get("num_key_value_heads") or heads)
    most = min(alone // batch, int(row.get("gpus_per_node") or 8))
    ranks = [
        n for n in range(1, most + 1) if not (alone // batch % n or heads % n or (groups % n and n % groups))
    ]
    return {"tp": max(ranks)}


def uneven(common: Row, layout: Row) -> tuple[int, ...]:
    """Return the layers of each pipeline stage where they cannot be equal: the first ones have one more.

    Interleaved stages are equal where embedding and output layer count as a layer each.
    """
    layers, stages = int(common["config"].get("num_hidden_layers") or 0), int(layout["pp"])
    virtual = int(layout["virtual_stages"])
    if virtual > 1 and (layers + 2) % (stages * virtual) == 0:
        return ()
    each, more = divmod(layers, stages)
    return tuple(each + (stage < more) for stage in range(stages)) if more else ()


def stated(row: Row) -> Row:
    """Return a row without what is unknown, with what its `other` states that no key of it does."""
    known = {key: value for key, value in row.items() if value not in (None, "", "unknown")}
    other = known.get("other") or {}
    for name, keys in table()["elsewhere"].items():
        found = [key if other[key] is True else other[key] for key in keys if other.get(key)]
        if found and name not in known:
            known[name] = found[0]
    framework = str(known.get("framework") or "").lower()
    alike = [one for one in table()["usual"] if any(word in framework for word in one["words"])]
    usual: dict[str, Any] = alike[0] if alike else {}
    sharded = str(known.get("sharding") or "none") != "none"
    recompute = usual.get("recompute") or (sharded and usual.get("recompute_of_shards"))
    if recompute and not {"recompute", "checkpointing"} & known.keys():
        known["recompute"] = recompute
    how = f"{known.get('sharding')} {framework}".lower()
    masters = any(word in how for word in usual.get("masters", ()))
    narrow = usual.get("bf16") or (not masters and not known.get("lora") and usual.get("bf16_of_all"))
    if narrow and known.get("precision") == "bf16":
        known["precision"] = narrow
    if "loss" in usual and "loss" not in known:
        known["loss"] = usual["loss"]
    default = {
        name: usual[name] for name in ("tie_word_embeddings", "hidden_act", "fused_layers") if name in usual
    }
    return default | known


KEYS: Mapping[str, tuple[str, ...]] = {
    "config": ("shape", "model"),
    "device": ("device",),
    "devices": ("gpus",),
    "gpus_per_node": ("gpus_per_node",),
    "network_B_per_s": ("network",),
    "seq_len": ("seq_len",),
    "micro_batch_size": ("micro_batch_size",),
    "global_batch_size": ("global_batch_size",),
    "gradient_accumulation_steps": ("gradient_accumulation_steps",),
    "tp": ("tp",),
    "pp": ("pp",),
    "cp": ("cp",),
    "ep": ("ep",),
    "etp": ("etp",),
    "virtual_stages": ("vp",),
    "zero": ("sharding",),
    "precision": ("precision",),
    "optimizer": ("optimizer",),
    "recompute": ("recompute", "checkpointing"),
    "dispatcher": ("dispatcher",),
    "offload": ("offload",),
    "adapters": ("lora",),
    "compile": ("compile",),
    "fused_loss": ("loss",),
    "fused_layers": ("loss",),
}
"""Keys of a row that decide a field of the question."""


def device_fields(text: str) -> dict[str, Any]:
    """Return the device of a text, or one of as much memory as it names; raises ValueError.

    A name of conf/hardware or of a variant, as in a100_40gb, is that device.
    """
    if "_" in text and (gpu := gpu_of(text)):
        return {"device": gpu.name}
    if name := meaning("devices", text):
        return {"device": name}
    if size := re.search(r"(\d+)\s*GB", text):
        return {"device": "h100_80gb", "memory_B": float(size[1]) * 1e9}
    raise ValueError(f"device {text!r}: conf/hardware has no GPU like it")


def config_of_run(row: Row, config_of: ConfigOf) -> Mapping[str, Any]:
    """Return the model's config; raises ValueError where its sizes are not known."""
    name, shape = str(row["model"]), row.get("shape") or {}
    sizes = {key: size for key, size in shape.items() if size or size is False}
    known = config_of(name)
    if known and all(known.get(key, size) == size for key, size in sizes.items() if key in SIZES_NEEDED):
        own = {key: row[key] for key in ("tie_word_embeddings", "hidden_act") if row.get(key) is not None}
        if known.get("hidden_act", GELU_OF.get(str(known.get("model_type")))) != "gelu_new":
            own.pop("hidden_act", None)
        return {**known, **own}  # of a program with an output layer and one kernel for GELU of its own
    missing = [key for key in SIZES_NEEDED if not sizes.get(key)]
    if missing:
        raise ValueError(f"model {name!r}: its {', '.join(missing)} is not stated")
    word = letters(name)
    inferred = {
        "name": name,
        "num_experts": sizes.get("experts"),
        "mlp": "gelu" if meaning("ungated", word, False) else "swiglu",
        "tie_word_embeddings": meaning("tied", word, False),
    }
    refuse_hybrid({**inferred, **sizes})
    return config_of_sizes({**inferred, **sizes})


def fields_of_run(row: Row, common: Row) -> dict[str, Any]:
    """Return what a run's row says otherwise than a step's: program, experts' ranks, sharding, states.

    Recipes of Megatron Bridge spread no expert over tensor-parallel ranks (expert_tensor_parallel_size = 1 in
    all of them at commit 067f987).
    """
    own = {"megatron": "megatron", "nanotron": "nanotron", "deepspeed": "zero", "composer": "fsdp1"}
    program = common["program"]
    pipelines, stage = int(row.get("pp") or 1) > 1, sharding_of(row.get("sharding"), program)[0]
    unsharded = str(row.get("sharding") or "").lower().startswith("none")
    if program == "deepspeed" and pipelines:
        program = "megatron"  # whose pipelines DeepSpeed's users have
    elif program == "deepspeed" and unsharded:
        program = "torchtitan"  # torch's own step, without DeepSpeed's engine
    elif program == "megatron" and stage > MEGATRON_STAGES and not pipelines:
        program = sharding_program(str(row["sharding"]))
    fields = {
        "program": program,
        "etp": row.get("etp") or (1 if program == "megatron" and is_recipe(row) else None),
        "states": meaning("pure_precisions", letters(row.get("precision")), "fp32"),
        "sharing": own.get(program) or meaning("sharing", row.get("sharding"), "fsdp2"),
    }
    words = f"{row['framework']} {(row.get('other') or {}).get('note') or ''}"
    fields["replicated_experts"] = meaning("replicated_experts", words, False)
    return {**fields, "zero": 0} if unsharded else fields


def sharding_program(sharding: str) -> str:
    """Return whose code shards a model of Megatron-Core beyond its optimizer: Megatron-FSDP its own."""
    text = sharding.lower()
    if "fsdp" not in text:
        return "deepspeed"
    return "torchtitan" if "torch" in text or "fsdp2" in text else "megatron"


def memory_fields(row: Row, program: str, checkpointing: object) -> dict[str, Any]:
    """Return how a run saves memory."""
    modules = re.findall(r"\w+", str(checkpointing).partition("modules:")[2])
    framework, date = str(row["framework"]).lower(), str(row.get("date") or "")
    loss = meaning("losses", row.get("loss"))
    if loss == "in_place" and "unsloth" in framework and date >= UNSLOTH_FUSED:
        loss = "fused"
    named = f"{row.get('optimizer') or ''} {framework if date < TRAINER_FUSED else ''}"
    dispatcher = meaning("dispatchers", row.get("dispatcher"), "alltoall")
    reentrant = meaning("reentrant", framework)
    return {
        "reentrant": reentrant == "always" or (reentrant == "before" and date < TRANSFORMERS_5),
        "recompute_modules": tuple(modules) if program == "megatron" else (),
        "dispatcher": dispatcher if program in DISPATCHING else "alltoall",
        "optimizer": meaning("optimizers", row.get("optimizer"), "adamw"),
        "optimizer_impl": meaning("optimizer_impls", named, "fused"),
        "offload": on_host(row, checkpointing),
        "fused_loss": loss == "fused",
        "fused_layers": bool(row.get("fused_layers")) or "liger" in str(row.get("loss")).lower(),
        "loss_in_place": loss == "in_place",
        "loss_chunks": LOSS_CHUNKS if loss == "chunks" else 1,
        "adapters": adapters_of(row),
        "imbalance": 1.0 if FORCED.search(str((row.get("other") or {}).get("routing"))) else None,
        "optimizer_in_backward": bool((row.get("other") or {}).get("optimizer_in_backward")),
    }


def on_host(row: Row, checkpointing: object) -> tuple[str, ...]:
    """Return what is on the host: as a page names it, or of FSDP's "cpu" all; with Unsloth checkpoints."""
    offload, framework = str(row.get("offload") or ""), str(row["framework"]).lower()
    words = table()["offloads"]
    found = [name for name, known in words.items() if any(one in offload.lower() for one in known)]
    if offload.startswith("cpu") and "fsdp" in str(row.get("sharding")):
        found += [name for name in ("parameters", "optimizer") if name not in found]
    if "offload" in str(checkpointing) or (row.get("other") or {}).get("unsloth") or "unsloth" in framework:
        found.append("activations")
    return tuple(dict.fromkeys(found))


def adapters_of(row: Row) -> dict[str, Any] | None:
    """Return the adapters of a run; None where all of the model is trained."""
    method, lora, other = str(row.get("method") or ""), row.get("lora") or {}, row.get("other") or {}
    prompts = 0 if lora or "lora" in method else meaning("prompts", method, 0)
    if not lora and "lora" not in method and not prompts:
        return None
    text = lora.get("targets")
    names = text if isinstance(text, list) else re.findall(r"[a-z_]+", str(text or ""))
    known = table()["lora_targets"]
    targets = [each for name in names for each in known.get(name, [name] if name.endswith("_proj") else [])]
    words = f"{method} {row.get('precision') or ''}".lower()
    base = meaning("quantised", words.replace("qlora-int8", "int8"), "bf16")
    stored = f"{row['framework']} {words} {row.get('sharding') or ''} {other.get('framework_config') or ''}"
    lightning = meaning("lightning", row["framework"], False)
    whole = (other.get("quant") or {}) if isinstance(other.get("quant"), dict) else {}
    date = str(row.get("date") or "")
    linear = date < TRANSFORMERS_5 or "linearized" in letters(row["model"])
    plain = meaning("reentrant", row["framework"]) == "before" and base == "bf16" and "" < date < PEFT_WIDENS
    return {
        "rank": int(lora.get("rank") or 8),
        "targets": tuple(dict.fromkeys(targets)),
        "base": base,
        "prompts": prompts,
        "ends": "embedding" in str(other.get("trainable_extra")),
        "experts": "tensor" if whole.get("quantize_moe_experts") else "linear" if linear else "bf16",
        "rest": meaning("unquantised", stored, "bf16") if base == "nf4" else "bf16",
        "dtype": "bf16" if lightning or plain else "fp32",
        "double": not lightning or "dq" in words,
        "lightning": lightning and base == "nf4",
        "flat": lightning,
    }


def unmodelled(row: Row) -> Iterator[KeyRead]:
    """Yield what a run's row says and no engine models, with what it does to the peak of memory."""
    padded, method = str(row.get("padded_or_packed") or ""), str(row.get("method") or "")
    if any(word in padded for word in ("padd", "maximum", "up to", "no packing")):
        means = "sequences may be shorter than seq_len"
        yield _unmodelled("padded_or_packed", padded, means, "lowers", to_states=True)
    if "ppo" in method:
        yield _unmodelled("method", method, "a critic, which is trained, too, and a reward model", "raises")
    elif "grpo" in method and rollout_of(row) != "transformers":
        yield _unmodelled("method", method, "an engine that generates, next to training", "raises")
    if "paged" in str(row.get("optimizer")).lower():
        means = "states in unified memory, which torch does not count"
        yield _unmodelled("optimizer", row["optimizer"], means, "lowers")
    if method == "spectrum":
        yield _unmodelled("method", method, "part of the model is trained", "lowers")
    if row.get("dispatcher") and meaning("programs", row["framework"]) not in DISPATCHING:
        means = "how tokens are sent to their experts"
        yield _unmodelled("dispatcher", row["dispatcher"], means, "either")


def _unmodelled(key: str, value: object, means: str, memory: Any, to_states: bool = False) -> KeyRead:
    rest: dict[str, Any] = {"memory": memory, "to_states": to_states, "seconds": "either"}
    return KeyRead(key=key, value=value, status="not modelled", means=means, **rest)


def flat(row: Row) -> Row:
    """Return a row of the older form, some of whose fields lie in `model` and `layout`, as a run's row.

    Those of Megatron-Core are of vendors' recipes for speed unless their framework is plain Megatron.
    """
    if not isinstance(layout := row.get("layout"), Mapping):
        return row
    model: Mapping[str, Any] = row["model"]
    recipe = program_of(row) == "megatron" and is_recipe(row)
    return {
        **row,
        **layout,
        "model": model.get("name") or "unnamed",
        "shape": model,
        "vp": layout.get("virtual_stages"),
        "etp": layout.get("etp") or 1,
        "other": {"performance_recipe": recipe},
    }


def steps_of_rows(rows: Sequence[Row], constants: StepConstants | None = None) -> PlannedSteps:
    """Return rows that differ in their layouts as steps to predict; raises ValueError in one line.

    What a program ran is not refused: nothing has to divide. `dp` and `gradient_accumulation_steps` of each
    question are those of its step.
    """
    questions = [question_of_row(row) for row in rows]
    first = questions[0]
    gpu, shape, training = known_gpu(first.device), shape_of(first.config or {}), training_of(first)
    of = setting(first, shape, training, gpu, run_facts(rows[0]), constants or StepConstants.read())
    layouts = [layout_row(one, one.dp or 1, one.gradient_accumulation_steps or 1) for one in questions]
    steps = planned(of, Layouts.of(layouts), first.global_batch_size)
    return steps._replace(recompute_known=first.origin("recompute").kind != "assumption")


def answer(row: Row, constants: StepConstants | None = None) -> dict[str, Any]:
    """Return the prediction for a row; without seconds where the model does not know."""
    among = row.get("among") or ()
    rows = [flat({**row, "layout": layout}) for layout in among] or [flat(row)]
    try:
        steps = steps_of_rows(rows, constants)
    except ValueError:
        return {"id": row["id"], "step_s": None}
    found = predicted(steps)
    if among:
        best = fastest(found)
        return {"id": row["id"], "index": int(among[best].get("index", best))}
    seconds = float(found.seconds[0])
    interval = interval_of(steps, float(found.filled[0]))
    return {
        "id": row["id"],
        "step_s": seconds,
        "step_s_low": seconds * interval.low,
        "step_s_high": seconds * interval.high,
        "memory_GB": float(found.memory_B[0]) / 1e9,
        "fits": bool(found.fits[0]),
    }


def fastest(steps: PredictedSteps) -> int:
    """Return of which layout the most tokens/s are to be expected, its chance to run included."""
    return int(np.argmax(steps.rate) if steps.rate.any() else np.argmin(steps.memory_B))


def answers(rows: Sequence[Row], constants: StepConstants | None = None) -> list[dict[str, Any]]:
    """Return a prediction for each row."""
    known = constants or StepConstants.read()
    return [answer(row, known) for row in rows]
