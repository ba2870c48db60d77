"""Words that several frameworks share, in ours and back."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from harness.frameworks.models import canonical, published_model
from harness.frameworks.table import Fields, Flat, Parts, framework_named, models_of, yaml_tree
from harness.frameworks.techniques import broken_by
from harness.question import Adapters, Question

HALVED = 1 - 1.03 / (2 + 2.06)
"""What remains of weights and states at least without one state of 8 bits: bf16 weights, no gradients."""


@cache
def words(kind: str) -> Mapping[str, str]:
    """Return frameworks' words of a kind with ours: optimizers, paged, alike, smaller or attention."""
    return {theirs: ours for ours, listed in yaml_tree("words")[kind].items() for theirs in listed.split()}


def optimizer_of(key: str, name: str, parts: Parts) -> str:
    """Return an optimizer in our word; one whose states are not modelled is left out, and AdamW taken."""
    word = name.lower().replace("-", "_").split(".")[-1].removesuffix("config").removeprefix("skipstep")
    for known in (word, word.replace("_", "")):
        if known in words("optimizers"):
            return words("optimizers")[known]
    if word in words("paged"):
        why = "states that move to the host where the device is full"
        parts.leave_out(key, name, why, "lowers", "raises")
        return words("paged")[word]
    if word in words("alike"):
        alike = words("alike")[word]
        parts.leave_out(key, name, f"one moment per parameter, as {alike}, which is taken", "none", "none")
        return alike
    if word in words("halved"):
        means = "one state of 8 bits per parameter; the two of 8-bit AdamW are taken"
        parts.leave_out(key, name, means, "lowers", "none", least=HALVED)
        return words("halved")[word]
    if word in words("smaller"):
        parts.leave_out(key, name, "states smaller than AdamW's, which are taken", "lowers", "either")
        return "adamw"
    parts.leave_out(key, name, "an optimizer whose states are not modelled; AdamW is taken")
    return "adamw"


def keeps_fp32(name: str) -> bool:
    """Return whether an optimizer's states are in fp32 whatever its weights are in: bitsandbytes' of 32 bits.

    (bitsandbytes, optim/optimizer.py, init_state of Optimizer2State; transformers 5.23.0, training_args.py,
    OptimizerNames, of which lion_32bit and ademamix are bitsandbytes', too)
    """
    word = name.lower()
    theirs = word.startswith(("paged", "bitsandbytes.")) or "bnb" in word
    return (theirs or word in ("lion_32bit", "ademamix")) and not word.endswith(("8bit", "4bit"))


def is_on(value: object) -> bool:
    """Return whether a switch is on, as a file or a command line writes it."""
    return str(value).lower() == "true"


def rollout_of(served: object) -> str:
    """Return who generates answers, by a switch of vLLM."""
    return "vllm" if is_on(served) else "transformers"


def implementation_of(name: object) -> str:
    """Return torch's implementation by transformers' name of an optimizer (5.23.0, trainer_optimizer.py)."""
    return "foreach" if name == "adamw_torch" else "fused"


def optimizer_word(question: Question) -> str:
    """Return transformers' name of a question's optimizer."""
    if question.optimizer == "adamw":
        return "adamw_torch" if question.optimizer_impl == "foreach" else "adamw_torch_fused"
    return {"adamw_8bit": "adamw_bnb_8bit", "sgd_momentum": "sgd"}.get(question.optimizer, question.optimizer)


def attention_of(key: str, name: str, parts: Parts) -> str:
    """Return attention in our word; kernels named by a repository are taken as flash attention."""
    if name not in words("attention") and "flash" not in name:
        parts.leave_out(key, name, "an attention that is not modelled; flash is taken")
    return words("attention").get(name, "flash")


def name_documents(key: str, parts: Parts) -> None:
    """Name that attention is within the documents of a packed sequence, where all of it is taken."""
    means = "sequences are packed, so that each is full: attention is within documents"
    parts.leave_out(key, True, means, "none", "lowers")


def name_mask(key: str, each_B: int, parts: Parts) -> None:
    """Name a mask of this many bytes per pair of tokens that keeps packed sequences apart."""
    pairs = parts["micro_batch_size"] * parts["seq_len"] ** 2
    means = "a mask keeps packed sequences apart, with which attention is slower"
    parts.leave_out(key, True, means, "raises", "raises", most_B=float(each_B * pairs))


def attention_word(question: Question) -> str:
    """Return transformers' name of a question's attention."""
    return "eager" if question.attention == "explicit" else "flash_attention_2"


def note_compile(key: str, compiled: Any, fields: Fields, parts: Parts) -> None:
    """Note that compilation is left out where hooks break its graphs."""
    offloaded = "activations" in fields.get("offload", ()) and fields.get("recompute", "none") == "none"
    if compiled and (hooks := broken_by(fields["sharing"], offloaded)):
        parts.leave_out(key, compiled, f"graphs that {hooks} breaks; none is taken", "lowers", "lowers")


EVERY_LAYER = {"all", "all-linear", "all_linear", "linear"}


ALTERNATIVES = re.compile(r"\(\??:?([\w|]+)\)(\w*)\$?$")
"""The end of a pattern such as `.*mlp.(gate|up|down)_proj`."""


def targets_of(modules: object) -> tuple[str, ...]:
    """Return the names of the layers with adapters; () for every linear layer, or where none is given.

    Of a pattern they are the alternatives with which it ends.
    """
    if isinstance(modules, str):
        modules = re.split(r"[,\s]+|\|(?=[^()]*(?:\(|$))", modules)
    names = []
    for one in modules if isinstance(modules, list | tuple) else []:
        text = str(one).strip(" ,")  # a shell's words of a list
        last = ALTERNATIVES.search(text)
        names += [f"{name}{last[2]}" for name in last[1].split("|")] if last else [text.split(".")[-1]]
    return () if EVERY_LAYER & set(names) else tuple(sorted(set(filter(None, names))))


def layers_named(names: Iterable[str]) -> set[str]:
    """Return transformers' names of linear layers that frameworks name; others stay as they are."""
    known = yaml_tree("words")["targets"]
    return {one for name in names for one in known.get(name, name).split()}


def steps_of(question: Question) -> int:
    """Return the micro-batches per step; raises ValueError where they follow from devices not known."""
    if question.gradient_accumulation_steps is None and question.global_batch_size is not None:
        return question.micro_batches()
    return question.gradient_accumulation_steps or 1


def batch_fields(sequences: int, micro: int, ranks: int | None) -> Fields:
    """Return a step's batch; where micro-batches do not divide it, the whole ones that a rank does, too."""
    micro = min(micro, -(-sequences // (ranks or 1)))
    rest = bool(ranks) and sequences % (micro * (ranks or 1))
    steps = {"gradient_accumulation_steps": max(1, sequences // (micro * (ranks or 1)))} if rest else {}
    return {"micro_batch_size": micro, "global_batch_size": sequences, **steps}


def name_undivided(
    key: str, sequences: int, micro: int, ranks: int | None, program: str, parts: Parts
) -> None:
    """Name a micro-batch that does not divide a rank's sequences, with which the program stops."""
    of_rank = sequences // (ranks or 1)
    if ranks and (of_rank == 0 or sequences % (micro * ranks)):
        why = f"{micro} does not divide the {of_rank} sequences of a rank; {program} stops"
        if sequences % ranks:
            why = f"{micro} × {ranks} ranks do not divide the {sequences} sequences; {program} stops"
        parts.leave_out(key, parts.flat.get(key), why, "raises" if micro > of_rank else "none", "none")


def shared_sequence(key: str, ranks: int, adapters: Adapters | None, parts: Parts) -> Fields:
    """Return context parallelism for ranks that share a sequence by Ulysses' or ring attention.

    The account of layouts has it for FSDP, and not for adapters.
    """
    if ranks == 1:
        return {"cp": 1}
    if adapters is not None:
        parts.leave_out(key, ranks, "ranks that share each sequence", "lowers")
        return {"cp": 1}
    parts.leave_out(key, ranks, "ranks that share each sequence, taken as context parallelism", "none")
    return {"cp": ranks, "program": "torchtitan"}


def budget_of(key: str, budget: int, seq_len: int, parts: Parts) -> int:
    """Return the micro-batch of whole sequences that holds a budget of tokens, one at least."""
    sequences = max(1, -(-budget // seq_len))
    if sequences * seq_len > budget > seq_len:
        why = f"tokens of a micro-batch at most; {sequences} sequences of {seq_len} are taken"
        parts.leave_out(key, parts.flat.get(key, budget), why, "lowers", "either")
    return sequences


def hub_name(question: Question) -> str:
    """Return the model's name on the Hub; names of formats that use such names stay as they are."""
    name, framework = question.model_name, question.format
    as_on_the_hub = bool(framework) and framework_named(framework).hub_names
    shape = published_model(name) if name and not as_on_the_hub else None
    if shape is None:
        return name
    own = "models" in yaml_tree(framework) and name in models_of(framework) if framework else False
    same = "/" not in name and canonical(shape.hub.rpartition("/")[2]) == canonical(name)
    return shape.hub if own or same else name  # else a model of the same shape with other weights


def mesh(question: Question) -> Fields:
    """Return the groups with full copies and the ranks that shard one, where the ranks are known."""
    if question.dp is None:
        return {}
    return {"_shard": question.dp // question.replicas, "_replicas": question.replicas}


def mesh_fields(parts: Parts) -> Fields:
    """Return the data-parallel ranks of a mesh that gives them: the inverse of `mesh`."""
    shard, replicas = parts.get("_shard"), parts.get("_replicas") or 1
    return {"dp": shard * replicas, "replicas": replicas if shard > 1 else 1} if shard else {}


def with_sequence_ranks(fields: Fields, parts: Parts) -> Fields:
    """Return the fields with accelerate's Ulysses ranks, which are ranks of its mesh.

    (accelerate 16cb6eb, parallelism_config.py, total_size: dp_replicate × dp_shard × tp × cp × sp)
    """
    ranks = parts.get("_sp") or 1
    if ranks == 1:
        return fields
    shared = shared_sequence("parallelism_config.sp_size", ranks, fields.get("adapters"), parts)
    if "dp" in fields:
        shared["dp"] = fields["dp"] * ranks // shared["cp"]
    return fields | shared


def offload_of(parts: Parts) -> tuple[str, ...]:
    """Return what lies on the host by two switches: activations, and states with parameters."""
    activations = ("activations",) if parts.get("_activations") else ()
    return (*activations, *(("optimizer", "parameters") if parts["_offload"] else ()))


def usual_parts(question: Question) -> Fields:
    """Return parts that several frameworks have by the same names; one without such a key writes none."""
    return {
        "_micro": question.micro_batch_size,
        "_length": question.seq_len,
        "_activations": "activations" in question.offload,
        "_offload": "parameters" in question.offload,
        **adapter_parts(question.adapters),
    }


def devices_of(parts: Parts) -> int | None:
    """Return the devices by a launcher's options: all, or those of a node times the nodes.

    None where the nodes are known only when the script runs.
    """
    if any(one.key.endswith(("nnodes", "num_nodes", "NNODES")) for one in parts.left_out):
        return None
    per_node = parts.get("_per_node")
    return parts.get("_world") or (per_node * (parts.get("_nodes") or 1) if per_node else None)


def precision_of(parts: Parts, prefix: str = "_") -> str:
    """Return the precision by the switches of bf16 and fp16; raises ValueError where both are on."""
    on = [name for name in ("bf16", "fp16") if parts.get(f"{prefix}{name}")]
    if len(on) == 2:
        raise ValueError("bf16 and fp16 are both true; a file takes one of them")
    return on[0] if on else "fp32"


def adapters_of(parts: Parts, **others: Any) -> Adapters:
    """Return the adapters of a file's parts, with others in their place."""
    given: Fields = {
        "rank": parts.get("_rank"),
        "targets": targets_of(parts.get("_modules")),
        "base": "nf4" if parts.get("_4bit") else "int8" if parts.get("_8bit") else "bf16",
        "dora": bool(parts.get("_dora")),
        "dropout": float(parts.get("_adapter_dropout") or 0.0),
    } | others
    given.setdefault("double", given["base"] != "nf4" or parts.get("_double") is not False)
    return Adapters(**given)


def adapter_parts(adapters: Adapters | None) -> Fields:
    """Return the parts of adapters: the inverse of `adapters_of`."""
    if adapters is None:
        return {}
    return {
        "_rank": adapters.rank,
        "_modules": list(adapters.targets) or None,
        "_4bit": adapters.base == "nf4",
        "_8bit": adapters.base == "int8",
        "_dora": adapters.dora,
        "_adapter_dropout": adapters.dropout,
        "_double": adapters.double if adapters.base == "nf4" else None,
    }


REFERENCE = re.compile(r"\$\{(.+)\}")


def filled(flat: Flat) -> dict[str, Any]:
    """Return the values with OmegaConf's references to others filled in; None where one is not given."""

    def value(one: Any, deep: int = 5) -> Any:
        found = REFERENCE.fullmatch(one) if isinstance(one, str) and deep else None
        if found is None:
            return one
        name = f"model{found[1]}" if found[1].startswith(".") else found[1]
        return value(flat.get(name, flat.get(f"variables.{name}")), deep - 1)

    return {key: value(one) for key, one in flat.items()}
