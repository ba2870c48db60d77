"""Sentences and tables that the answers of fit, advise and cost have in common."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from textwrap import wrap

from harness.answer import Answer, RankedLayout, StepAnswer, Turn
from harness.commands.grammar import datasheet, device_file
from harness.question import KeyRead, Question
from harness.units import number

WIDTH = 96
"""Columns of the longest line."""

MOST_KEYS = 8
"""Keys that are not modelled and are listed by name; the rest are counted, and listed by show=all."""

PROGRAMS = {
    **{"megatron": "Megatron-LM", "torchtitan": "torchtitan", "deepspeed": "DeepSpeed"},
    **{"nanotron": "nanotron", "composer": "Composer"},
}
"""Whose code trains."""

SHARED_BY_MANY = {"torchtitan": "torchtitan", "composer": "llm_foundry"}
"""Programs whose account also answers for others that use FSDP, each with the format of its own files."""

CHOICES = {
    ("optimizer_impl", "default"): ("a fused optimizer", "torch's default on CUDA (foreach)"),
    ("optimizer_impl", "for_loop"): ("a fused optimizer", "a for-loop over parameters"),
    ("sharing", "fsdp2"): ("a full copy on each rank (DDP)", "FSDP or ZeRO-3 by the launcher"),
    ("keep_logits", "model"): ("logits released after the loss", "logits kept in a variable"),
}
"""By what a question leaves open: what is assumed, and the other choice, in words."""

DIRECTIONS = {
    "lowers": ": lowers the peak",
    "raises": ": raises the peak",
    "either": ": may lower or raise the peak",
}
"""Behind what a key that is not modelled changes."""


PARTS = {
    "matmul": "matmuls of layers",
    "attention": "attention",
    "pointwise": "norms, activations, residuals",
    "launch": "waiting for the host",
    "tensor": "tensor parallelism",
    "context": "context parallelism",
    "expert": "experts' all-to-all",
    "shard": "gathering sharded parameters",
    "head": "output layer and loss",
    "bubble": "pipeline bubble",
    "reduction": "reducing gradients",
    "update": "optimizer",
    "generation": "generation of answers",
    "rest": "stragglers and others",
}
"""Parts of a step, in which communication counts as far as nothing hides it."""


def GB(size_B: float) -> str:
    """Return bytes in GB without the unit."""
    return f"{size_B / 1e9:.1f}"


def parameters(count: float) -> str:
    """Return a number of parameters in billions or millions."""
    large = count >= 1e9
    return f"{number(count / (1e9 if large else 1e6))} {'B' if large else 'M'} parameters"


def wrapped(text: str, indent: str = "") -> list[str]:
    """Return prose in lines; `indent`: before all but the first."""
    return wrap(text, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def table(rows: Sequence[Sequence[str]], texts: int = 1) -> Iterator[str]:
    """Yield aligned lines; the first `texts` columns are text, the others numbers."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        cells = [
            text.ljust(width) if column < texts else text.rjust(width)
            for column, (text, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield "  ".join(cells).rstrip()


def apart(*parts: Iterable[str]) -> Iterator[str]:
    """Yield the lines of parts, with an empty one before each."""
    for part in parts:
        yield ""
        yield from part


def asked(answer: Answer, question: Question, *facts: str, link: bool = False) -> list[str]:
    """Return a sentence with the model, the devices, the length of sequences, and further facts.

    `link`: with the network between the devices.
    """
    model = question.model_name or "Model without a name"
    cluster = f"{devices_of(question)}, {link_title(question)};" if link else f"{devices_of(question)},"
    return wrapped(
        f"{model}, {parameters(answer.parameters or 0.0)}; {cluster} "
        f"{', '.join([f'{question.seq_len or 0:,} tokens per sequence', *facts])}."
    )


def trainer(question: Question) -> str:
    """Return whose code trains, in words; one without an account is taken as the one that shares so."""
    program = question.program_of()
    own = program not in SHARED_BY_MANY or question.format in ("", SHARED_BY_MANY[program])
    name = question.framework.partition(" ")[0] or question.format
    return f"as {PROGRAMS[program]} trains" if own else f"{name}'s training, taken as {PROGRAMS[program]}'s"


def adapted(question: Question) -> list[str]:
    """Return a sentence with the adapters, where they alone are trained."""
    adapters = question.adapters
    if adapters is None:
        return []
    kind = f"DoRA's rank {adapters.rank}" if adapters.dora else f"rank {adapters.rank}"
    layers = ", ".join(adapters.targets) or "every linear layer"
    kind = f"prompts of LLaMA-Adapter {adapters.prompts}" if adapters.prompts else f"{kind} on {layers}"
    ends = ", with embedding and output layer" if adapters.ends else ""
    return wrapped(f"Trained: adapters alone, {kind}{ends}; the weights are frozen, in {adapters.base}.")


def what_was_asked(answer: Answer, question: Question) -> list[str]:
    """Return the model, the cluster and the batch of a question about seconds."""
    batch = question.global_batch_size
    if batch is None and not question.search and question.gradient_accumulation_steps:
        batch = question.sequences_per_step()
    tokens = f"{batch * (question.seq_len or 0):,} tokens per step" if batch else "any batch"
    facts = (tokens, question.precision, trainer(question))
    return [*asked(answer, question, *facts, link=True), *adapted(question)]


def chance(one: RankedLayout) -> str:
    """Return how likely a layout runs."""
    likely = one.chance_to_run
    return "" if likely is None else ">99%" if likely > 0.995 else f"{likely:.0%}"


def worth_of(seconds: StepAnswer) -> Iterator[tuple[str, str]]:
    """Yield each switch and what it is worth in words, the best first."""
    for name, ratio in sorted(seconds.switches.items(), key=lambda one: one[1]):
        yield name, f"{'costs' if ratio > 1 else 'saves'} {abs(ratio - 1):.1%}"


def shares(parts_s: Mapping[str, float]) -> Iterator[tuple[str, float, float]]:
    """Yield the parts of a step that are seen, each in words, in seconds and as a share of the step."""
    total = sum(parts_s.values())
    for name, words in PARTS.items():
        if parts_s.get(name, 0.0) > 0.001 * total:
            yield words, parts_s[name], parts_s[name] / total


def devices_of(question: Question) -> str:
    """Return the devices in words."""
    name = question.device
    title = str(datasheet(name)["name"]) + ("" if device_file(name) == name else f" as {name}")
    if question.memory_B is not None:
        unit, size = ("GiB", 2.0**30) if question.memory_B % 1e6 else ("GB", 1e9)
        title = f"device of {question.memory_B / size:g} {unit}"
    count = question.all_devices()
    return f"{count:,} × {title}" if count > 1 else title


def link_title(question: Question) -> str:
    """Return the network in words."""
    kind = ", EFA" if question.network == "efa" else ""
    return f"{question.network_B_per_s * 8 / 1e9:g} Gbit/s per GPU{kind}"


def room(usable_B: float, less: str) -> str:
    """Return what a process can use of a device, and what is taken off it."""
    return f"{GB(usable_B)} GB ({usable_B / 2**30:.1f} GiB) usable, less {less}. 1 GB = 10^9 B."


def engine(answer: Answer) -> str:
    """Return which engine answered, and why."""
    return f"Engine: {answer.engine}, since {answer.why}."


def turns(answer: Answer) -> Iterator[str]:
    """Yield on what a verdict depends; the first sentence stands in the answer's first two lines."""
    likely = "fits" if answer.likely_fits else "does not fit"
    for words in dict.fromkeys(turn_words(turn, likely) for turn in answer.turns):
        yield from wrapped(f"Depends on {words}.", "  ")


def turn_words(turn: Turn, likely: str) -> str:
    """Return what may turn a verdict, and how."""
    other = "does not fit" if likely == "fits" else "fits"
    size = "" if turn.peak_B is None else f" ({GB(turn.peak_B)} GB)"
    match turn.kind:
        case "assumption":
            assumed, choice = CHOICES.get((turn.name, turn.other), (f"this {turn.name}", turn.other))
            return f"{assumed}, which is assumed and {likely}; with {choice} it {other}"
        case "key" if not turn.value:  # in no key
            return f"{turn.why} ({turn.name}), which is not modelled; as it is read, this {likely}"
        case "key":
            return f"{turn.name}={turn.value}, which is not modelled ({turn.why}); without it this {likely}"
        case "allocator":
            setting = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
            return f"the allocator: it {likely}, and with {setting} it {other}"
        case "routing":
            shares = "equal shares" if turn.other == "even" else "the busiest half as much again"
            return f"how tokens are routed: it likely {likely}; with {shares} for experts it {other}{size}"
        case _:
            return f"the {turn.name}'s error, {turn.value} ({turn.why}): it likely {likely}"


def direction_of(key: KeyRead) -> str:
    """Return what a key that is not modelled does to the peak, in words."""
    most = "" if key.most_B is None else f" by {GB(key.most_B)} GB at most"
    return f"{DIRECTIONS.get(key.memory, '')}{most}"


def read_lines(question: Question, everything: bool) -> Iterator[str]:
    """Yield what was read of a framework's file, and each key that is not modelled."""
    if not question.format:
        return
    counts = Counter(key.status for key in question.keys)
    model = f"{question.model_name}, {question.model_source}".removeprefix(", ")
    yield from wrapped(
        f"Read as {question.format}: {counts['understood']} keys understood, {counts['default']} defaults of "
        f"{question.framework}, {counts['irrelevant']} keys that change neither memory nor speed. Model: "
        f"{model}.",
        "  ",
    )
    assumed = [
        (name if name == "config" else f"{name}={getattr(question, name)}", origin.of)
        for name, origin in question.origins.items()
        if origin.kind == "assumption" and origin.of
    ]
    said = {why for _, why in assumed}
    unclear = [key for key in question.keys if key.status == "not modelled" and key.means not in said]
    shown = unclear if everything else unclear[:MOST_KEYS]
    if unclear:
        more = f"; and {len(unclear) - len(shown)} more: show=all" if len(unclear) > len(shown) else ""
        yield from wrapped(f"Not modelled: {'; '.join(map(key_words, shown))}{more}.", "  ")
    if assumed:
        yield from wrapped(f"Assumed: {'; '.join(f'{what} ({why})' for what, why in assumed)}.", "  ")


def key_words(key: KeyRead) -> str:
    """Return a key that is not modelled with what it changes; where no key says that, in words first."""
    if key.value is None:
        return f"{key.means} ({key.key}{direction_of(key)})"
    return f"{key.key}={key.value} ({key.means}{direction_of(key)})"


def origins(question: Question) -> Iterator[str]:
    """Yield where each field of a question comes from: `show=all`."""
    yield "Where each value comes from"
    for name in question.__struct_fields__:
        if name in ("config", "origins", "keys"):
            continue
        origin = question.origin(name)
        of = f": {origin.of}" if origin.of else ""
        yield f"  {name}={getattr(question, name)} ({origin.kind}{of})"
    for status in ("understood", "default", "irrelevant"):
        keys = [f"{key.key}={key.value}" for key in question.keys if key.status == status]
        if keys:
            yield from wrapped(f"Keys, {status}: {', '.join(keys)}", "  ")
