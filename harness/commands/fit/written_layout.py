"""`write=FORMAT`: the layout that an answer has first, as a framework's own file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from harness.config.validation import ConfigError

if TYPE_CHECKING:
    from harness.config.own_files.setup import OwnSetup
    from harness.records import Record

ENGINES = {
    "megatron": "megatron",
    "nanotron": "nanotron",
    "deepspeed": "zero",
    "torchtitan": "fsdp2",
    "composer": "fsdp1",
}
"""The engine of a program of the account of layouts."""

RECOMPUTES = ("none", "selective", "full")
"""By the number that a row of suite layouts has."""

COMPARED = (
    *("dp", "tp", "pp", "cp", "ep", "virtual_stages", "zero", "micro_batch_size", "micro_batches"),
    *("recompute", "sequence_parallel"),
)
"""Fields of a layout that a written file must give again when it is read."""


def setup_of_workload(fields: Mapping[str, object], setup: OwnSetup | None) -> OwnSetup:
    """Return what was asked as a set-up, or a file's with that; `fields`: of a workload of suite layouts."""
    from harness.config.own_files.setup import OwnSetup as Setup

    program = str(fields["program"])
    config = fields["hf_config"]
    assert isinstance(config, Mapping)
    base = setup or Setup(
        format="", framework="", engine=ENGINES[program], model=config, model_source="model="
    )
    offload = str(fields.get("offload", "none"))
    return replace(
        base,
        devices=int(str(fields["gpus"])),
        seq_len=int(str(fields["seq_len"])),
        precision=base.precision if base.precision == "fp16" else str(fields["precision"]),
        optimizer=str(fields["optimizer"]),
        recompute_modules=tuple(map(str, fields.get("recompute_modules") or ())),  # type: ignore[call-overload]
        dispatcher=str(fields.get("dispatcher", "alltoall")),
        offload={"none": (), "optimizer": ("optimizer",)}.get(offload, ("optimizer", "parameters")),
    )


def answered_setup(record: Record, fields: Mapping[str, object], setup: OwnSetup | None) -> OwnSetup | None:
    """Return the layout that an answer has first as a set-up; None where it has none.

    `fields`: of the workload; `setup`: of the file that asked.
    """
    note = next((one for one in record.notes if one.startswith("parts: ")), None)
    if note is None:
        return None
    parts = {name: int(size) for name, _, size in (one.partition(":") for one in note[7:].split(","))}
    batch = fields["global_batch_size"]
    return with_layout(setup_of_workload(fields, setup), parts, int(str(batch)) if batch else None)


def with_layout(setup: OwnSetup, parts: Mapping[str, int], batch: int | None) -> OwnSetup:
    """Return a set-up with another layout; `parts`: those of a row of suite layouts."""
    sharded = parts["zero"] > 0
    engine = setup.engine
    if engine == "ddp" and sharded:
        engine = "fsdp2"
    ranks = parts["dp"] * parts["cp"]
    shard = parts.get("shard_size") or ranks
    return replace(
        setup,
        engine=engine,
        dp=parts["dp"],
        devices=parts["dp"] * parts["tp"] * parts["pp"] * parts["cp"],
        tp=parts["tp"],
        pp=parts["pp"],
        cp=parts["cp"],
        ep=parts["ep"],
        etp=parts["etp"],
        virtual_stages=parts["virtual_stages"],
        layers_per_stage=layers_per_stage(setup, parts["pp"], parts["virtual_stages"]),
        schedule="interleaved1f1b" if parts["virtual_stages"] > 1 else "1f1b",
        zero=parts["zero"],
        shard_size=None,
        replicas=ranks // shard if sharded else 1,
        micro_batch_size=parts["micro_batch_size"],
        gradient_accumulation_steps=parts["micro_batches"],
        global_batch_size=batch,
        recompute=RECOMPUTES[parts["recompute"]],
        recompute_every=1,
        sequence_parallel=bool(parts["sequence_parallel"]),
    )


def layers_per_stage(setup: OwnSetup, pp: int, virtual_stages: int) -> int | None:
    """Return the layers of a stage that give so many, as torchtitan counts them; None where none do.

    See `OwnSetup.stages_per_rank`.
    """
    if pp == 1 or virtual_stages == 1 or setup.model is None:
        return None
    layers, stages = int(setup.model.get("num_hidden_layers", 0)) + 2, pp * virtual_stages
    size = -(-layers // stages)
    return size if -(-layers // size) == stages else None


def written_layout(setup: OwnSetup, format_: str) -> Iterator[str]:
    """Yield a set-up as another framework's file, and what that file says otherwise; raises ConfigError."""
    from harness.config.own_files.read import WRITERS, read_own_text, write_own

    suffix = {"toml": ".toml", "json": ".json", "command": ""}.get(WRITERS.get(format_, ""), ".yaml")
    try:
        text = write_own(setup, format_)
        again = read_own_text(text, format_, suffix)
        asked, said = setup.layout(), again.layout(setup.devices)
    except ValueError as error:
        raise ConfigError(f"write={format_}: {error}") from error
    yield from text.rstrip().splitlines()
    other = [f"{name} {said[name]} for {asked[name]}" for name in COMPARED if said[name] != asked[name]]
    if other:
        yield f"This file cannot say all of the answer: {', '.join(other)}."
    if again.model is None:
        yield f"This file does not say the model, {setup.model_name or 'which has no name here'}."


def refuse_unknown_format(format_: str) -> None:
    """Raise ConfigError for a `write=` that names no format."""
    from harness.config.own_files.read import format_named

    try:
        format_named(format_)
    except ValueError as error:
        raise ConfigError(f"write={format_}: {error}") from error
