"""`write=FORMAT`: what was answered, as a framework's own file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from harness.answer import Answer
from harness.ask.words import mistake
from harness.question import DEEPSPEED_BUCKET, FieldOrigin, Question

RECOMPUTES = ("none", "selective", "full")
"""By the number that a row of a layout has."""

SAID = (
    *("dp", "tp", "pp", "cp", "ep", "virtual_stages", "zero", "micro_batch_size", "global_batch_size"),
    *("gradient_accumulation_steps", "recompute", "sequence_parallel", "seq_len", "precision"),
    "reduce_bucket",
)
"""Fields of an answer that a written file must give again when it is read."""

BUCKETS = {0: "auto", None: f"{DEEPSPEED_BUCKET:,} (DeepSpeed's default)"}
"""`Question.reduce_bucket` where it is no size."""

ANSWERED = FieldOrigin("assumption", "the answer")


def written(answer: Answer, question: Question, format_: str) -> Iterator[str]:
    """Yield the answer as a framework's file, and what that file cannot say; raises ConfigError."""
    found = answered(answer, question)
    if found is None:
        yield f"write={format_}: no layout fits, so that there is nothing to write."
        return
    from harness.frameworks.read import read_back, write_own

    with mistake(f"write={format_}: "):
        text = write_own(found, format_)
        other = read_back(found, format_, text)
    yield from text.rstrip().splitlines()
    if said := differing_of(other):
        yield f"This file cannot say all of the answer: {', '.join(said)}."
    if "config" in other:
        yield f"This file does not say the model, {found.model_name or 'which has no name here'}."


def differing_of(other: Mapping[str, tuple[Any, Any]]) -> list[str]:
    """Return what a file says otherwise than the answer, by field; `other`: of `read_back`."""
    said = {name: pair for name, pair in other.items() if name in SAID and pair[0] is not None}
    if "reduce_bucket" in other:
        ours, theirs = (BUCKETS.get(one, one) for one in other["reduce_bucket"])
        said["reduce_bucket"] = (ours, theirs)
    return [f"{name} {theirs} for {ours}" for name, (ours, theirs) in said.items()]


def answered(answer: Answer, question: Question) -> Question | None:
    """Return the question that an answer recommends; None where no layout fits.

    Of a layout or a recipe that was asked about, it is at its largest micro-batch.
    """
    largest = answer.memory.largest_micro_batch if answer.memory else None
    if answer.layouts:
        found = with_layout(question, answer.layouts[0].parts)
        return with_largest(found, largest) if largest is not None else found
    if answer.memory is None:
        return None
    return question.with_fields(ANSWERED, micro_batch_size=max(1, largest or 1))


def with_layout(question: Question, parts: Mapping[str, int]) -> Question:
    """Return a question with another layout; `parts`: a row of a layout."""
    sharded, sharing = parts["zero"] > 0, question.sharing
    ranks, stages = parts["dp"] * parts["cp"], parts["pp"] * parts["virtual_stages"]
    layers_per_stage = None  # that gives so many, as torchtitan counts them: `Question.stages_per_rank`
    if parts["pp"] > 1 and parts["virtual_stages"] > 1 and question.config is not None:
        layers = int(question.config.get("num_hidden_layers", 0)) + 2
        size = -(-layers // stages)
        layers_per_stage = size if -(-layers // size) == stages else None
    names = ("dp", "tp", "pp", "cp", "ep", "etp", "virtual_stages", "zero", "micro_batch_size")
    return question.with_fields(
        ANSWERED,
        **{name: parts[name] for name in names},
        search=False,
        sharing="fsdp2" if sharing == "ddp" and sharded else sharing,
        devices=parts["dp"] * parts["tp"] * parts["pp"] * parts["cp"],
        layers_per_stage=layers_per_stage,
        schedule="interleaved1f1b" if parts["virtual_stages"] > 1 else "1f1b",
        shard_size=None,
        replicas=ranks // (parts.get("shard_size") or ranks) if sharded else 1,
        gradient_accumulation_steps=parts["micro_batches"],
        recompute=RECOMPUTES[parts["recompute"]],
        recompute_every=1,
        sequence_parallel=bool(parts["sequence_parallel"]),
    )


def with_largest(question: Question, largest: int) -> Question:
    """Return a question with the largest micro-batch that fits and divides its part of the batch."""
    batch = question.global_batch_size
    of_rank = batch // question.dp_of() if batch else None
    sizes = [size for size in range(1, largest + 1) if of_rank is None or of_rank % size == 0]
    size = max(sizes, default=question.micro_batch_size)
    steps = of_rank // size if of_rank else question.gradient_accumulation_steps
    return question.with_fields(ANSWERED, micro_batch_size=size, gradient_accumulation_steps=steps)
