"""Workloads of the dataloader suites: what is loaded by how many ranks, and how documents are assigned."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from harness.bounds import Bounds, OnlyWith, PositiveInt
from suites.training.balance import DocumentCost, flop_of_document

TRAINS = ("training", "slow_storage")  # kinds in which batches feed training steps


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
    def trains(self) -> bool:
        """Return whether batches feed training steps."""
        return self.kind in TRAINS


DOCUMENTS = OnlyWith("items", ("documents",))
ROWS = OnlyWith("items", ("rows",))
LOG_NORMAL = OnlyWith("lengths_from", ("log_normal",))
PUBLISHED = OnlyWith("lengths_from", ("published",))


@dataclass(frozen=True, slots=True, kw_only=True)
class DataloaderBalanceWorkload:
    """The documents of a step, the model that trains on them, and the groups that share them."""

    # log_normal: drawn. published: drawn from the quantiles of real documents in published_lengths.jsonl.
    # list: these, in every step.
    lengths_from: Literal["log_normal", "published", "list"] = "log_normal"
    documents_of: Annotated[Literal["wikipedia", "textbooks", "source_code", "long_context"], PUBLISHED] = (
        "wikipedia"
    )
    mean_tokens: Annotated[float, Bounds(above=0), LOG_NORMAL] = 1093.0  # of documents, before they are cut
    sigma: Annotated[float, Bounds(at_least=0), LOG_NORMAL] = 1.5  # of the logarithm of the lengths
    lengths: Annotated[list[Any], OnlyWith("lengths_from", ("list",))] = field(default_factory=list)

    context_length: PositiveInt = 16384  # tokens; longer documents are cut into parts of it
    # documents: each is an item, and a group may get any number of tokens.
    # rows: documents are joined and cut into rows of the context length; each group gets equally many rows.
    items: Literal["documents", "rows"] = "documents"
    documents_per_step: Annotated[PositiveInt, DOCUMENTS] = 1024
    # Parts of a document longer than the context, where they are dealt in order or at random. spread: dealt
    # one by one, like documents. kept: all to the group of their document, as torch's DataLoader deals them.
    long_documents: Annotated[Literal["spread", "kept"], DOCUMENTS] = "spread"
    rows_per_group: Annotated[PositiveInt, ROWS] = 4
    groups: PositiveInt = 64  # data-parallel groups
    steps: PositiveInt = 40

    # What a document costs. flop: FLOP by the sizes below. measured: seconds by document_seconds.jsonl, of a
    # model of these sizes. timed: seconds of a step of a model of these sizes, timed here beforehand.
    cost: Literal["flop", "measured", "timed"] = "flop"
    # The gain that others measured in this setting, for the error of the prediction; 0: none.
    published_gain: Annotated[float, Bounds(at_least=0)] = 0.0

    # The model, by its sizes: those of Llama 3 8B (arXiv 2407.21783, table 3).
    hidden_size: Annotated[int, Bounds(at_least=1, multiple_of="num_attention_heads")] = 4096
    num_hidden_layers: PositiveInt = 32
    intermediate_size: PositiveInt = 14336
    num_attention_heads: Annotated[int, Bounds(at_least=1, multiple_of="num_key_value_heads")] = 32
    num_key_value_heads: PositiveInt = 8
    vocab_size: Annotated[int, Bounds(at_least=0)] = 128256  # 0: no language-model head
    mlp_matrices: Annotated[int, Bounds(at_least=2, at_most=3)] = 3
    causal: bool = True
    attention_only: bool = False  # leave out all that grows linearly with the length
    source: str = ""

    @property
    def flop(self) -> DocumentCost:
        """Return the FLOP of a document, by its length."""
        flop = flop_of_document(
            hidden_size=self.hidden_size,
            num_hidden_layers=self.num_hidden_layers,
            intermediate_size=self.intermediate_size,
            num_attention_heads=self.num_attention_heads,
            num_key_value_heads=self.num_key_value_heads,
            vocab_size=self.vocab_size,
            mlp_matrices=self.mlp_matrices,
            causal=self.causal,
        )
        return flop._replace(linear=0.0) if self.attention_only else flop

    @property
    def most_tokens(self) -> int | None:
        """Return the tokens that a group has room for; None without a limit."""
        return self.rows_per_group * self.context_length if self.items == "rows" else None
