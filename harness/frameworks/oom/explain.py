"""An out-of-memory text and the set-up that gave it, to what was asked for and what would change it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from harness.frameworks.oom.message import OomMessage, messages_in
from harness.frameworks.oom.phase import OomPlace, where_of
from harness.frameworks.oom.tensors import StepTensor, matches, step_tensors
from harness.frameworks.table import yaml_tree
from harness.instruments.transformer.shape import TransformerShape
from harness.question import Question


class Remedy(NamedTuple):
    """A change that helps, with what it costs and its technique in this project."""

    change: str
    cost: str
    technique: str = ""


class OomExplained(NamedTuple):
    """What an out-of-memory text says."""

    message: OomMessage
    where: OomPlace
    fragmentation: str  # yes, partly, no, or unknown
    tensors: tuple[StepTensor, ...]  # of the size that was asked for, most likely first
    remedies: tuple[Remedy, ...]  # cheapest first
    missing: str  # what would say more, in one line


def read_oom(
    text: str,
    question: Question | None = None,
    shape_of: Callable[[Mapping[str, Any]], TransformerShape] | None = None,
) -> OomExplained:
    """Return what the first out-of-memory message of a text means for a set-up.

    `shape_of`: returns the shape of a Hugging Face config, or raises ValueError with why it has none.
    Raises ValueError with one line that says what was recognised where there is no such message.
    """
    messages = messages_in(text)
    if not messages:
        raise ValueError(_nothing(text))
    message = messages[0]
    text = _of_rank(text, message.rank)
    where = where_of(text[: text.find("out of memory")])
    if not where.phase:
        where = where_of(text)  # launchers print some tracebacks after the message
    found: list[StepTensor] = []
    missing = "config= is missing: with it the tensor of this size is named"
    if question is not None and question.config is None:
        named = question.model_name or "no model"
        missing = f"model= is missing: {question.format} names {named}, whose sizes are not known"
    elif question is not None and question.config is not None and shape_of is not None:
        try:
            found = matches(*message.tensor_B, where.phase, step_tensors(question, shape_of(question.config)))
            missing = "" if found else _no_match(question)
        except ValueError as error:
            missing = str(error)
    fragmentation = fragmentation_of(message)
    remedies = remedies_of(message, fragmentation, where, found[0] if found else None, question)
    return OomExplained(message, where, fragmentation, tuple(found), remedies, missing)


def _of_rank(text: str, rank: int | None) -> str:
    """Return the lines of one rank where torch prints its number before each, else the text."""
    lines = [line for line in text.splitlines() if line.lstrip().startswith(f"[rank{rank}]:")]
    return "\n".join(lines) if rank is not None and len(lines) > 1 else text


KNOWN: Mapping[str, Any] = yaml_tree("oom")
REMEDIES = {name: Remedy(**remedy) for name, remedy in KNOWN["remedies"].items()}


def _nothing(text: str) -> str:
    found = next((line for pattern, line in KNOWN["other_texts"].items() if re.search(pattern, text)), None)
    return found or (
        "no out-of-memory message of torch is in it: expected 'CUDA out of memory. Tried to allocate …'"
    )


def _no_match(question: Question) -> str:
    if not question.seq_len:
        return "no tensor of this size; seq_len is missing, so activations and logits are not known"
    if question.zero and question.dp is None and question.devices is None:
        return "no tensor of this size; devices is missing, so shards are not known"
    return "no tensor of a step has this size: sequences of another length, or a tensor that is not listed"


def fragmentation_of(message: OomMessage) -> str:
    """Return whether torch held enough unused memory: yes, partly (with what was free), no, or unknown."""
    if message.unallocated_B is None:
        return "unknown"
    if message.unallocated_B >= message.asked.lo_B:
        return "yes"
    free_B = message.free.B if message.free else 0.0
    return "partly" if message.unallocated_B + free_B >= message.asked.lo_B else "no"


def remedies_of(
    message: OomMessage,
    fragmentation: str,
    where: OomPlace,
    tensor: StepTensor | None,
    question: Question | None,
) -> tuple[Remedy, ...]:
    """Return what would change it, cheapest first, without what the question has already."""
    of_phase = {"loss": "logits", "optimizer": "optimizer", "gather": "gather"}
    kind = tensor.kind if tensor else of_phase.get(where.phase, "any")
    if not tensor and where.operation == "attention scores":
        kind = "attention"
    remedies = [REMEDIES["expandable"]] if fragmentation in ("yes", "partly") else []
    if message.others_B and message.others_B > message.asked.lo_B:
        others = f"end the other processes on this GPU, which hold {message.others_B / 2**30:.2f} GiB"
        remedies.append(Remedy(others, "nothing"))
    names = KNOWN["by_kind"][kind].split()
    had = _had(question) if question is not None else set()
    remedies += [REMEDIES[name] for name in names if name not in had]
    if question is not None and question.zero != 3 and kind not in ("logits", "attention"):
        remedies += _sharding(question)
    return tuple(dict.fromkeys(remedies))


def _had(question: Question) -> set[str]:
    """Return the remedies that a question has already."""
    has = {
        "fused_loss": question.fused_loss,
        "flash": question.attention == "flash",
        "fused_adam": question.optimizer_impl == "fused",
        "selective": question.recompute != "none",
        "full": question.recompute == "full" and question.recompute_every == 1,
        "smaller": question.micro_batch_size == 1,
        "eight_bit": question.optimizer == "adamw_8bit",
        "offload": "optimizer" in question.offload,
    }
    return {name for name, had in has.items() if had}


def _sharding(question: Question) -> list[Remedy]:
    """Return more sharding, where a question shards less than everything."""
    if question.sharing == "megatron":
        return [] if question.zero else [REMEDIES["distributed_optimizer"]]
    shard = REMEDIES["shard"]
    return [shard._replace(change=shard.change.replace("ZeRO 1 to 3", "ZeRO 3")) if question.zero else shard]
