"""A workload of the dataloader suite: what is loaded, by how many ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from harness.bounds import Bounds, OnlyWith, PositiveInt

TRAINS = ("training", "slow_storage")
"""Kinds in which batches feed training steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Text of many sources, packed into rows for the ranks of data and context parallelism."""

    # Batches alone; batches that feed training steps; the same with files of an emulated slow storage.
    # Batches at a steady pace while actors are killed; plans for simulated clients.
    kind: Literal["loading", "training", "slow_storage", "failures", "control_plane"]
    sources: Literal[5, 32, 306] = 306
    # Files of the packages installed here, or synthetic text by seed.
    text: Literal["installed", "generated"] = "installed"
    # For loaders that read several; one that cannot read it gets the best of its own.
    format: Literal["parquet", "jsonl", "array_record"] = "parquet"
    # Of Parquet files; 0: one row group per file.
    row_group_documents: Annotated[int, Bounds(at_least=0), OnlyWith("format", ("parquet",))] = 0
    # Worker processes per rank; 0: the rank reads by itself, where the loader can.
    workers: Annotated[int, Bounds(at_least=0, at_most=64)] = 2
    dp_size: Annotated[int, Bounds(at_least=1, at_most=16)] = 2
    cp_size: Annotated[int, Bounds(at_least=1, at_most=8)] = 1
    # Tokens per row.
    context_length: Annotated[int, Bounds(at_least=16, divisible_by=16)] = 2048
    # Over all data-parallel groups.
    documents_per_step: Annotated[int, Bounds(at_least=1, multiple_of="dp_size")] = 64
    # Weights of the sources: equal; by their text; equal at first and by their text from the middle on.
    mixture: Literal["even", "by_size", "changing"] = "even"
    # Batches, or training steps, that are timed.
    steps: PositiveInt = 32
    # And for at least this long: of a short time, batches that were loaded before it are a large part.
    timed_s: Annotated[float, Bounds(at_least=0), OnlyWith("kind", ("loading",))] = 0.0
    # A loader that has no batch by then is given up: timed_out.
    first_batch_within_s: Annotated[float, Bounds(above=0)] = 240.0
    # Of the emulated storage: before each read of a file, and the rate of one file (0: as fast as it is).
    read_delay_s: Annotated[float, Bounds(at_least=0), OnlyWith("kind", ("slow_storage",))] = 0.0
    read_B_per_s: Annotated[float, Bounds(at_least=0), OnlyWith("kind", ("slow_storage",))] = 0.0
    # Of the model that is trained.
    hidden_size: Annotated[
        int, Bounds(at_least=2, multiple_of="num_attention_heads"), OnlyWith("kind", TRAINS)
    ] = 64
    num_hidden_layers: Annotated[PositiveInt, OnlyWith("kind", TRAINS)] = 2
    num_attention_heads: Annotated[PositiveInt, OnlyWith("kind", TRAINS)] = 2
    # While actors are killed: how long, how often one is, and how long a step takes that uses a batch.
    seconds: Annotated[float, Bounds(above=0), OnlyWith("kind", ("failures",))] = 300.0
    kill_interval_s: Annotated[float, Bounds(above=0), OnlyWith("kind", ("failures",))] = 5.0
    step_s: Annotated[float, Bounds(at_least=0), OnlyWith("kind", ("failures",))] = 0.2
    # Simulated ranks that each need their part of every plan.
    clients: Annotated[PositiveInt, OnlyWith("kind", ("control_plane",))] = 64
    source: str = ""

    @property
    def ranks(self) -> int:
        """Return the number of ranks: those of one data-parallel group are neighbours."""
        return self.dp_size * self.cp_size

    @property
    def trains(self) -> bool:
        """Return whether batches feed training steps."""
        return self.kind in TRAINS
