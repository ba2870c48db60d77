"""The step_time suite: does the model predict seconds of training steps that others published?

Each workload is one or several sources of published steps. What the model, rules of thumb (40 % of the
datasheet, the layout that guides name first) and other programs predict for them is compared with what was
published: how far predictions are off, and how far of pairs that differ by one switch. Nothing is timed.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

from harness.question import Question
from harness.records import Json, Note, Origin, Reading
from suites.published.runs import group_of
from suites.published.workload import StepTimeWorkload
from suites.training.step_time.gpu import known_gpu
from suites.training.step_time.prediction import predicted
from suites.training.step_time.published.rows import PublishedRun, question
from suites.training.step_time.published.steps import published, with_and_without_attention
from suites.training.step_time.questions import answers, fastest, question_of_row, steps_of_rows

Predictions = Mapping[str, Mapping[str, Any]]
"""By the id of a step: step_s with step_s_low and step_s_high, memory_GB, fits; of a cell: index."""

ACCUMULATED = "gradient_accumulation_steps"
LAYOUT = ("dp", "tp", "pp", "cp", "ep", "vp", "sharding", "micro_batch_size", ACCUMULATED)
NOT_ASKED = ("id", "date", "page", "place")


class SwitchedFields(NamedTuple):
    """What differs between the two steps of a pair."""

    name: str
    differs: str  # the switch: a field of the run, or the GPU's architecture
    follows: tuple[str, ...]  # fields that may differ, too


SWITCHES = (
    SwitchedFields("zero", "sharding", ()),
    SwitchedFields("micro_batch", "micro_batch_size", (ACCUMULATED,)),
    SwitchedFields("tensor_for_data", "tp", ("dp", ACCUMULATED)),
    SwitchedFields("pipeline_for_data", "pp", ("dp", ACCUMULATED)),
    SwitchedFields("precision", "precision", ()),
    SwitchedFields("attention", "attention", ()),
    SwitchedFields("gpus", "gpus", ("dp", "global_batch_size", ACCUMULATED)),
    SwitchedFields("gpu", "architecture", ("device", "gpus_per_node", "global_batch_size", *LAYOUT)),
)
"""Between generations of GPUs, a step has the layout and the batch that were published for it."""


class StepPair(NamedTuple):
    """Two steps, the one that takes more GPU-seconds per token first."""

    slower: PublishedRun
    faster: PublishedRun

    @property
    def gain(self) -> float:
        """Return how many times as many published GPU-seconds per token the slower step takes."""
        return per_token_s(self.slower) / per_token_s(self.faster)

    def predicted(self, said: Predictions) -> float | None:
        """Return the predicted gain; None where a step was not predicted."""
        seconds = [said.get(one.id, {}).get("step_s") for one in self]
        if not all(seconds):
            return None
        return per_token_s(self.slower, seconds[0]) / per_token_s(self.faster, seconds[1])


def per_token_s(step: PublishedRun, seconds: float | None = None) -> float:
    """Return the GPU-seconds per token of a step, of the published seconds unless others are given."""
    return (seconds or step.step_s or math.nan) * step.gpus / tokens_of(step)


def tokens_of(step: PublishedRun) -> int:
    """Return the tokens of one update."""
    return (step.sequences or 0) * (step.seq_len or 0)


def pairs_of(steps: Sequence[PublishedRun], switch: SwitchedFields) -> Iterator[StepPair]:
    """Yield each pair of steps that ran, are of one source and differ in nothing but the switch."""
    free = {switch.differs, *switch.follows}
    groups: dict[str, list[tuple[object, PublishedRun]]] = {}
    for one in steps:
        if one.step_s:
            fields = _fields(one, with_architecture=switch.differs == "architecture")
            rest = {name: value for name, value in fields.items() if name not in free}
            groups.setdefault(json.dumps(rest, sort_keys=True), []).append((fields.get(switch.differs), one))
    for group in groups.values():
        for (of_first, first), (of_second, second) in combinations(group, 2):
            if of_first != of_second:
                pair = StepPair(first, second)
                yield pair if pair.gain >= 1 else StepPair(second, first)


def _fields(step: PublishedRun, with_architecture: bool) -> dict[str, object]:
    """Return what a step was asked with."""
    fields = {name: value for name, value in question(step).items() if name not in NOT_ASKED}
    return {**fields, "architecture": known_gpu(step.device).architecture} if with_architecture else fields


def of_ratios(steps: Sequence[PublishedRun], said: Predictions) -> Iterator[tuple[str, float]]:
    """Yield how far off the predicted gain of each pair is, by kind of switch, and how many there are."""
    for switch in SWITCHES:
        known = [(pair, pair.predicted(said)) for pair in pairs_of(steps, switch)]
        errors = [gain / pair.gain - 1 for pair, gain in known if gain]
        for error in errors:
            yield f"ratio_error/{switch.name}", error
            yield f"absolute_ratio_error/{switch.name}", abs(error)
        if errors:
            yield f"ratio_pairs/{switch.name}", len(errors)


DIFFER = 1.05
"""Ratio of two steps from which on the sign of their difference counts."""


def readings(method: str, steps: Sequence[PublishedRun], said: Predictions) -> Iterator[Reading]:
    """Yield the errors of each step, and shares; nothing where nothing can be compared."""
    for metric, value in values(steps, said):
        unit = "s" if metric.startswith("step_time") else "1"
        yield Reading(metric, unit, value, Origin.CALCULATED, method)


def values(steps: Sequence[PublishedRun], said: Predictions) -> Iterator[tuple[str, float]]:
    """Yield each metric with a value, several of those that each step has."""
    yield from of_seconds(steps, said)
    yield from of_memory(steps, said)
    yield from of_choices(steps, said)
    yield from of_signs(steps, said)
    yield from of_ratios(steps, said)


def of_seconds(steps: Sequence[PublishedRun], said: Predictions) -> Iterator[tuple[str, float]]:
    """Yield the error of each step that ran, its size at nine in ten, and what the intervals hold."""
    asked = [(said.get(one.id, {}), one.step_s) for one in steps if one.step_s]
    known = [(one, seconds) for one, seconds in asked if one.get("step_s")]
    if not known:
        return
    errors = [one["step_s"] / seconds - 1 for one, seconds in known]
    yield "steps_predicted", len(known)
    yield "steps_not_known", len(asked) - len(known)
    for error in errors:
        yield "relative_error", error
        yield "absolute_error", abs(error)
    yield "absolute_error_at_90", sorted(map(abs, errors))[min(len(errors) - 1, int(0.9 * len(errors)))]
    for one, seconds in known:
        if "step_s_low" in one:
            yield "inside_interval", float(one["step_s_low"] <= seconds <= one["step_s_high"])
            yield "interval_half_width", (one["step_s_high"] - one["step_s_low"]) / 2 / one["step_s"]


def of_memory(steps: Sequence[PublishedRun], said: Predictions) -> Iterator[tuple[str, float]]:
    """Yield whether each step that ran is said to fit, and rightly, of sources that published failures."""
    for one in steps:
        if one.step_s and "fits" in said.get(one.id, {}):
            yield "ran_and_fits", float(said[one.id]["fits"])
    failing = {one.source for one in steps if not one.outcome.runs}
    told = [(one.outcome.runs, said.get(one.id, {}).get("fits")) for one in steps if one.source in failing]
    known = [(bool(runs), bool(fits)) for runs, fits in told if fits is not None]
    for runs, fits in known:
        yield "fits_rightly", float(runs == fits)
    if known:
        yield "said_to_fit_and_failed", sum(fits and not runs for runs, fits in known)
        yield "said_to_fail_and_ran", sum(runs and not fits for runs, fits in known)


def of_choices(steps: Sequence[PublishedRun], said: Predictions) -> Iterator[tuple[str, float]]:
    """Yield the rate of each chosen layout over the best one's; 0 for one that does not run."""
    for name, cell in cells_of(steps).items():
        if name in said:
            rates = [1 / one.step_s if one.step_s else 0.0 for one in cell]
            yield "chosen_over_best", rates[said[name]["index"]] / max(rates)


def cells_of(steps: Sequence[PublishedRun]) -> Mapping[str, list[PublishedRun]]:
    """Return the layouts that the playbook tried for one model on as many GPUs, of which one is chosen."""
    cells: dict[str, list[PublishedRun]] = {}
    for one in steps:
        if one.source == "playbook":
            cells.setdefault(group_of(one), []).append(one)
    return {f"choice/{cell[0].id}": cell for cell in cells.values()}


def of_signs(steps: Sequence[PublishedRun], said: Predictions) -> Iterator[tuple[str, float]]:
    """Yield whether the faster was named of two layouts that differ by one switch and 5 % or more."""
    of_playbook = [one for one in steps if one.source == "playbook"]
    for switch in SWITCHES:
        for pair in pairs_of(of_playbook, switch):
            ours = pair.predicted(said)
            if ours is not None and math.log(pair.gain) >= math.log(DIFFER):
                yield f"sign_rightly/{switch.name}", float(ours > 1)


MFU = 0.4
"""Share of the datasheet's dense rate: a rule of thumb for well-tuned steps."""

GB = 1e9


def parameters_of(model: Mapping[str, Any]) -> float:
    """Return the parameters of layers and embeddings: 2 hd (H + K) of attention, 2 or 3 hi of the MLP."""
    hidden, heads = model["hidden_size"], model["num_attention_heads"]
    kv_heads = model.get("num_key_value_heads") or heads
    head_dim = model.get("head_dim") or hidden / heads
    attention = 2.0 * hidden * head_dim * (heads + kv_heads)
    matrices = 3 if model["gated_mlp"] else 2
    mlp = matrices * hidden * model["intermediate_size"]
    embeddings = model["vocab_size"] * hidden * (1 if model.get("tie_word_embeddings") else 2)
    return float(model["num_hidden_layers"] * (attention + mlp) + embeddings)


def has_experts(asked: Question) -> bool:
    """Return whether a model is a mixture of experts, which the rules do not cover."""
    return bool((asked.config or {}).get("num_experts"))


def forty_percent(steps: Sequence[PublishedRun]) -> Predictions:
    """Return the seconds at 40 % of the datasheet's rate; 6N + 12Lhs FLOP per token (arXiv 2204.02311)."""
    said = {}
    for step in steps:
        asked = question_of_row(question(step))
        if has_experts(asked):
            continue
        model: Mapping[str, Any] = asked.config or {}
        attention = 12.0 * model["num_hidden_layers"] * model["hidden_size"] * (step.seq_len or 0)
        FLOP = tokens_of(step) * (6 * parameters_of(model) + attention)
        rate = MFU * step.gpus * known_gpu(asked.device).peak_FLOP_per_s(asked.precision)
        said[step.id] = {"step_s": FLOP / rate}
    return said


def guides(steps: Sequence[PublishedRun]) -> Predictions:
    """Return what a guide's reader would choose, and whether states, activations and logits fit.

    The largest data-parallel degree that fits, then tensor before pipeline parallelism, ZeRO-1, the largest
    micro-batch.
    """
    asked = {step.id: question_of_row(question(step)) for step in steps}
    said: dict[str, dict[str, Any]] = {
        name: {"fits": fits(one)} for name, one in asked.items() if not has_experts(one)
    }
    for name, cell in cells_of(steps).items():
        said[name] = {"index": _first_of_guides([asked[step.id] for step in cell])}
    return said


def _first_of_guides(questions: Sequence[Question]) -> int:
    """Return which layout the guides' order names first."""
    good = [at for at, one in enumerate(questions) if fits(one)] or range(len(questions))

    def order(at: int) -> tuple[int, int, bool, int]:
        one = questions[at]
        return -(one.dp or 1), one.pp, one.zero != 1, -one.micro_batch_size

    return min(good, key=order)


def fits(asked: Question) -> bool:
    """Return whether states, activations and logits fit into the GPU's memory."""
    return memory_B(asked) <= known_gpu(asked.device).memory_B


def memory_B(asked: Question) -> float:
    """Return states of 16 bytes per parameter, sbh (10 + 24/t) of activations per layer, and fp32 logits.

    States: 2 of weights, 2 of gradients and 12 of Adam, of which ZeRO-1 shards the 12 (arXiv 1910.02054).
    Activations: arXiv 2205.05198, table 2, without the attention's, which a fused kernel does not keep. The
    first stage of 1F1B keeps as many micro-batches as there are stages, so those of all layers.
    """
    model, tp, pp = asked.config or {}, asked.tp, asked.pp
    per_rank = parameters_of(model) / tp / pp
    shard = (asked.dp or 1) if asked.zero else 1
    states = per_rank * (4 + 12 / shard)
    tokens = (asked.seq_len or 1) * asked.micro_batch_size
    kept = min(pp, asked.gradient_accumulation_steps or pp) / pp
    layers = model["num_hidden_layers"] * kept
    activations = tokens * model["hidden_size"] * (10 + 24 / tp) * layers
    return float(states + activations + 4.0 * tokens * model["vocab_size"] / tp)


FOLDER = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Subject:
    """Published steps of some sources."""

    workload: StepTimeWorkload
    steps: Sequence[PublishedRun]


def read_lines(name: str) -> list[dict[str, Any]]:
    """Return the objects of a file of this folder, one per line."""
    return [json.loads(line) for line in (FOLDER / name).read_text().splitlines()]


def steps_of(sources: Sequence[str]) -> list[PublishedRun]:
    """Return the steps of some sources; raises ValueError for a source that has none."""
    every = (*published(), *with_and_without_attention())
    known = {one.source for one in every}
    unknown = [name for name in sources if name not in known]
    if unknown:
        raise ValueError(
            f"sources={unknown[0]!r}: no step was published there; known are {', '.join(sorted(known))}"
        )
    return [one for one in every if one.source in sources]


COMMIT = re.compile(r"https://github\.com/([^/]+/[^/]+)/(?:blob|tree)/(\w{9})")
"""A page's repository, and the commit that was read."""

Predictor = Callable[[Sequence[PublishedRun]], Predictions]


def by_model(steps: Sequence[PublishedRun]) -> Predictions:
    """Return what suites/training/step_time predicts."""
    cells = {
        name: {"index": fastest(predicted(steps_of_rows([question(step) for step in cell])))}
        for name, cell in cells_of(steps).items()
    }
    return {one["id"]: one for one in answers([question(step) for step in steps])} | cells


@cache
def on_file(name: str) -> Mapping[str, Mapping[str, Any]]:
    """Return the predictions of a file of this folder by question; its first line says how they were made."""
    _, *lines = read_lines(name)
    return {one["id"]: one for one in lines}


def from_file(name: str) -> Predictor:
    """Return the predictor whose answers a file has."""

    def predict(steps: Sequence[PublishedRun]) -> Predictions:
        ids = {*(one.id for one in steps), *cells_of(steps)}
        return {id: said for id, said in on_file(name).items() if id in ids}

    return predict


PREDICTORS: Mapping[str, Predictor] = {
    "model": by_model,
    "left_out": from_file("left_out.jsonl"),
    "forty_percent": forty_percent,
    "guides": guides,
    "calculon": from_file("calculon.jsonl"),
    "llm_analysis": from_file("llm_analysis.jsonl"),
}
"""By the method of their readings."""


def build(workload: Json, seed: int) -> Subject:
    """Return the published steps of the workload's sources."""
    given = StepTimeWorkload(**workload)
    return Subject(given, steps_of(given.sources))


def check(subject: Subject) -> None:
    """Do nothing: what is compared are predictions, and tests compare the model with its parts."""


def conditions(subject: Subject) -> Mapping[str, str]:
    """Return what was published: steps that ran, devices, GPUs, repositories with their commits."""
    steps = subject.steps
    gpus = sorted({one.gpus for one in steps})
    places = sorted({", commit ".join(found.groups()) for one in steps if (found := COMMIT.match(one.page))})
    return {
        "layouts": str(len(steps)),
        "devices": ", ".join(sorted({one.device for one in steps})),
        "gpus": str(gpus[0]) if len(gpus) == 1 else f"{gpus[0]} to {gpus[-1]:,}",
        "source": subject.workload.source,
        "places": "; ".join(places),
    }


def sample(subject: Subject) -> Iterator[Reading | Note]:
    """Return how far off each predictor is: of seconds, of memory, of layouts that fit, of choices."""
    for name, predictor in PREDICTORS.items():
        yield from readings(name, subject.steps, predictor(subject.steps))


def close(subject: Subject) -> None:
    """Do nothing: nothing was allocated."""
