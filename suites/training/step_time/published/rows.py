"""The form of a published training run: what was set, what came out, where it is printed.

A run is a line of a file; without its outcome it is a question. docs/extend/published-rows.md says how to
add one.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import msgspec
from msgspec import Meta

FILE = Path(__file__).parents[3] / "published" / "runs.jsonl"
"""The runs that are asked as users ask theirs."""

Text = Annotated[str, Meta(min_length=1)]
Positive = Annotated[float, Meta(gt=0)]
AtLeastOne = Annotated[int, Meta(ge=1)]

CommittedFile = Annotated[str, Meta(pattern=r"^(?:[\w.-]+/[\w.-]+ \S.*)?$")]
"""owner/repository, and a path there."""

PeakKind = Literal["allocated", "active", "reserved", "nvidia-smi", "unknown"]
"""What a published peak counts: max_memory_allocated, these and freed blocks that another stream uses,
max_memory_reserved, the device's use; not stated."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What came out. `runs`: absent where it did not finish for a reason that is not printed."""

    runs: bool | None = None
    peak_GB: Positive | None = None  # 10⁹ B, per GPU
    peak_kind: PeakKind | None = None
    host_GB: Positive | None = None  # 10⁹ B of a node's memory
    step_s: Positive | None = None  # per update of the weights
    tokens_s_per_gpu: Positive | None = None
    samples_s: Positive | None = None
    tflops_per_gpu: Positive | None = None
    mfu_pct: Positive | None = None
    mfu_convention: Text | None = None
    max_batch: AtLeastOne | None = None
    max_seq_len: AtLeastOne | None = None
    more: dict[str, Any] = {}


NAMED = ("runs", "peak_GB", "host_GB", "step_s", "tokens_s_per_gpu", "samples_s", "max_batch", "max_seq_len")
"""Fields of an outcome of which a run has one."""


class PublishedRun(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A published run, in the words of its source; sizes in their usual names."""

    id: Text
    kind: Literal["pretrain", "finetune"]
    source: Text
    framework: Text
    model: Text
    device: Text
    gpus: AtLeastOne
    outcome: Outcome
    page: str = ""  # where a person finds it; "" where its publisher's page has no address that is known
    place: str = ""  # on that page
    date: str = ""
    topic: str = ""
    parameters_B: Positive | None = None
    active_parameters_B: Positive | None = None
    shape: dict[str, Any] = {}
    method: str = ""  # full, lora, qlora, grpo, …
    lora: dict[str, Any] = {}
    gpus_per_node: AtLeastOne | None = None
    network: str = ""
    seq_len: AtLeastOne | None = None
    padded_or_packed: str = ""
    global_batch_size: AtLeastOne | None = None
    micro_batch_size: AtLeastOne | None = None
    gradient_accumulation_steps: AtLeastOne | None = None
    precision: str = ""
    optimizer: str = ""
    attention: str = ""
    checkpointing: bool | None = None
    recompute: str = ""
    sharding: str = ""
    offload: str = ""
    dp: AtLeastOne | None = None
    tp: AtLeastOne | None = None
    pp: AtLeastOne | None = None
    vp: AtLeastOne | None = None
    cp: AtLeastOne | None = None
    ep: AtLeastOne | None = None
    etp: AtLeastOne | None = None
    loss: str = ""
    compile: bool | None = None
    overlap: str = ""
    dispatcher: str = ""
    other: dict[str, Any] = {}
    file: CommittedFile = ""  # the configuration that the publisher committed
    title: str = ""
    words: dict[str, Any] = {}  # of harness.fit, which ask for what ran more exactly than the rest
    rank: Literal["largest", "last"] = "largest"  # whose peak it is: that of the last stage, or the largest

    def __post_init__(self) -> None:
        """Refuse an outcome that says nothing, and a peak without what it counts."""
        if not self.page and not self.place:
            raise ValueError(
                "page: missing; give the address where it is printed, or the page's name as place"
            )
        if all(getattr(self.outcome, name) is None for name in NAMED):
            raise ValueError(f"outcome: nothing came out; give one of {', '.join(NAMED)}")
        if self.outcome.peak_GB is not None and self.outcome.peak_kind is None:
            raise ValueError(f"outcome.peak_kind: missing; allowed: {', '.join(get_args(PeakKind))}")

    @property
    def step_s(self) -> float | None:
        """Return the published seconds per update, or those that follow from its speed."""
        outcome, batch, length = self.outcome, self.sequences, self.seq_len
        if outcome.step_s is not None:
            return outcome.step_s
        if batch is None or length is None:
            return None
        if outcome.tokens_s_per_gpu is not None and self.kind == "pretrain":
            return batch * length / (outcome.tokens_s_per_gpu * self.gpus)
        return None if outcome.samples_s is None else batch / outcome.samples_s

    @property
    def sequences(self) -> int | None:
        """Return the sequences of one update."""
        if self.global_batch_size is not None or self.micro_batch_size is None or self.kind == "pretrain":
            return self.global_batch_size
        ranks = self.gpus // ((self.tp or 1) * (self.pp or 1) * (self.cp or 1))
        return self.micro_batch_size * (self.gradient_accumulation_steps or 1) * ranks


@cache
def published_runs(file: Path = FILE) -> tuple[PublishedRun, ...]:
    """Return the runs of a file; raises ValueError with the line of one without source, unit or outcome."""
    found = []
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        try:
            found.append(msgspec.json.decode(line, type=PublishedRun))
        except msgspec.DecodeError as error:
            raise ValueError(f"{file.name}, line {number}: {error}") from None
    return tuple(found)


def question(run: PublishedRun) -> dict[str, Any]:
    """Return a run without its outcome, or the words that ask for it: a line for `questions=`."""
    if run.words:
        return {"id": run.id, **run.words}
    row: dict[str, Any] = msgspec.to_builtins(run)
    return {name: value for name, value in row.items() if name != "outcome" and value not in ("", {}, None)}
