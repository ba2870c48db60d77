"""Made-up slow steps whose cause is known: is it among the first two that `mine=` names?

Seconds come from the model with one part changed, and from the suites' own measured steps with an injected
loss; both in sizes between those that are tried, with noise. `pytest -s` prints the shares: of all steps,
small losses inside the interval included, and of those that take a tenth longer at least.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from harness.answer import Answer
from harness.ask.mine import PLACES, PRINTS_TIMERS, OwnStep, likely_causes
from harness.question import Question, question_of
from harness.records import Record, measurement
from harness.sweep.store import read_records
from suites.training import seconds_engine
from suites.training.layouts.layout import Layouts
from suites.training.of_question import seconds_subject_of, setting_of
from suites.training.step_time.causes import in_passes, places_of, timers_of
from suites.training.step_time.constants import StepConstants
from suites.training.step_time.prediction import planned, predicted


def llama(hidden: int, layers: int, heads: int, width: int, **more: Any) -> dict[str, Any]:
    return {"model_type": "llama", "hidden_size": hidden, "num_hidden_layers": layers, "vocab_size": 128256,
            "num_attention_heads": heads, "num_key_value_heads": 8, "intermediate_size": width,
            "tie_word_embeddings": False, **more}  # fmt: skip


SMALL, MIDDLE, LARGE = llama(2048, 16, 32, 8192), llama(4096, 32, 32, 14336), llama(8192, 80, 64, 28672)
EXPERTS = llama(4096, 32, 32, 14336, model_type="mixtral", num_local_experts=8, num_experts_per_tok=2)

SET_UPS: tuple[dict[str, Any], ...] = (
    {"config": SMALL, "device": "a100_80gb", "devices": 16, "program": "deepspeed", "zero": 2, "batch": 128,
     "micro_batch_size": 8, "recompute": "selective"},
    {"config": SMALL, "device": "h100_80gb", "devices": 32, "program": "nanotron", "tp": 2, "batch": 256},
    {"config": SMALL, "device": "h100_80gb", "devices": 64, "program": "torchtitan", "zero": 3, "batch": 256},
    {"config": MIDDLE, "device": "a100_80gb", "devices": 32, "program": "megatron", "tp": 4, "batch": 256},
    {"config": MIDDLE, "device": "h100_80gb", "devices": 64, "program": "torchtitan", "zero": 3, "batch": 64},
    {"config": MIDDLE, "device": "b200", "devices": 16, "program": "megatron", "pp": 2, "batch": 256},
    {"config": LARGE, "device": "a100_80gb", "devices": 256, "program": "megatron", "tp": 8, "pp": 4,
     "batch": 512, "micro_batch_size": 4},
    {"config": LARGE, "device": "h100_80gb", "devices": 128, "program": "megatron", "tp": 4, "pp": 8,
     "batch": 256, "micro_batch_size": 2},
    {"config": LARGE, "device": "h100_80gb", "devices": 256, "program": "torchtitan", "zero": 3,
     "batch": 256, "recompute": "full"},
    {"config": EXPERTS, "device": "h100_80gb", "devices": 64, "program": "megatron", "ep": 8, "tp": 2,
     "batch": 256, "micro_batch_size": 2},
    {"config": EXPERTS, "device": "a100_80gb", "devices": 128, "program": "megatron", "ep": 4, "pp": 4,
     "tp": 2, "batch": 512},
)  # fmt: skip


def question(setup: dict[str, Any]) -> Question:
    fields = {"seq_len": 4096, "zero": 1, "sequence_parallel": setup.get("tp", 1) > 1, **setup}
    sharing = {"torchtitan": "fsdp2", "deepspeed": "zero"}.get(setup["program"], "ddp")
    batch = fields.pop("batch")
    return question_of(**fields, global_batch_size=batch, sharing=sharing, network_B_per_s=25e9)


@cache
def answered(index: int) -> tuple[Question, Answer]:
    asked = question(SET_UPS[index])
    return asked, seconds_engine.answer(asked)


class SlowStep(NamedTuple):
    family: str
    answer: Answer
    seconds: float
    places_s: dict[str, float]
    log: OwnStep | None = None  # as a log with timers has it
    prints: str = ""  # the program, where its log can have them

    @property
    def times(self) -> float:
        """Return how many times as long as predicted the step takes."""
        likely = self.answer.layouts[0].step_s
        assert likely is not None
        return self.seconds / likely.likely


CLEAR, LEAST = 1.1, 1.01
"""Times the prediction from which a loss is clear, and below which nothing was slowed down."""


def slowed(index: int, family: str, rng: random.Random) -> SlowStep | None:
    """Return a step that takes longer by one changed part; None where nothing does."""
    asked, answer = answered(index)
    subject = seconds_subject_of(asked)
    setting = setting_of(subject)
    layout, constants, cluster = subject.layout, setting.constants, setting.cluster
    program, before = setting.training.program, predicted(planned(setting, subject.layout, subject.batch))
    steps, plain_s = planned(setting, layout, subject.batch), float(before.seconds[0])
    places, added = places_of(before, float(steps.batches[0])), {}
    match family:
        case "network":
            rate = cluster.network_B_per_s / rng.uniform(3, 12)
            setting = replace(setting, cluster=cluster._replace(network_B_per_s=rate))
        case "overlap":
            names = ("reduction_exposed", "expert_exposed")
            names += (f"{program}.shard_exposed", f"{program}.tp_exposed")
            changed = StepConstants(constants | dict.fromkeys(names, 1.0))
            setting = replace(setting, constants=changed, run=setting.run._replace(tensor_overlap=False))
        case "launches":
            factor = rng.uniform(2, 8)
            names = tuple(f"{program}.{name}" for name in ("layer_launch_s", "tp_launch_s", "zero_launch_s"))
            changed = StepConstants(constants | {name: factor * constants[name] for name in names})
            setting = replace(setting, constants=changed)
        case "clocks":
            power = cluster.gpu.power_share * rng.uniform(0.5, 0.85) ** 2
            setting = replace(setting, cluster=cluster._replace(gpu=replace(cluster.gpu, power_share=power)))
        case "loader":
            added = {"data": plain_s * rng.uniform(0.15, 1.5)}
        case "imbalance":
            added = {"ranks": places["computing"] * rng.uniform(0.15, 0.6)}
        case "allocator":
            assert answer.seconds is not None
            if not any(one.family == "allocator" for one in answer.seconds.causes):
                return None
            retries = float(layout.micro_batches[0]) * rng.uniform(0.3, 1)
            added = {"idle": constants["allocator.retry_s"] * retries}
    after = predicted(planned(setting, layout, subject.batch))
    places = places_of(after, float(steps.batches[0]))
    timers = timers_of(setting, layout, after, float(steps.batches[0]))
    for place, seconds in added.items():
        places[place] += seconds
        for name, each in ({} if place == "data" else in_timers(seconds, place, program, layout)).items():
            timers[name] += each
    noise = math.exp(rng.gauss(0, 0.03))
    seconds = float(after.seconds[0]) + sum(added.values())
    if seconds < LEAST * plain_s:
        return None
    places, timers = ({name: noise * one for name, one in each.items()} for each in (places, timers))
    timers = {name: one * math.exp(rng.gauss(0, 0.03)) for name, one in timers.items()}
    if program == "deepspeed":
        del timers["spread"]  # of rank 0 alone
    needed_B, room_B = answer.layouts[0].needed_B, answer.layouts[0].room_B
    reserved_B = min(needed_B * math.exp(rng.gauss(0, 0.05)), room_B)
    if family == "allocator":
        reserved_B = rng.uniform(0.93, 1.0) * room_B
    return SlowStep(
        family,
        answer,
        noise * seconds,
        places,
        OwnStep(noise * seconds, (), timers | {"data": places["data"]}, {}, reserved_B),
        program if program in PRINTS_TIMERS else "",
    )


def in_timers(added_s: float, place: str, program: str, layout: Layouts) -> dict[str, float]:
    """Return what timers show of seconds that one rank computes longer, or that all of them wait.

    Megatron's log has the least and the most of all ranks: half of it in their mean, which the others wait
    for when gradients are reduced. DeepSpeed's has rank 0, which waits. Within layers all ranks wait.
    """
    apart = layout.dp[0] > 1 and layout.zero[0] < 3 and layout.ep[0] == 1
    if place != "ranks" or not apart:
        return in_passes(added_s)
    if program == "megatron":
        return {**in_passes(added_s / 2), "reduction": added_s / 2, "spread": added_s}
    return {"reduction": added_s}


FAMILIES = ("network", "overlap", "launches", "loader", "imbalance", "allocator", "clocks")


def of_the_model() -> Iterator[SlowStep]:
    rng = random.Random(60)
    for index, _ in product(range(len(SET_UPS)), range(3)):
        for family in FAMILIES:
            if (step := slowed(index, family, rng)) is not None:
                yield step


RESULTS = Path(__file__).parents[3] / "results/reference"

INJECTED = {"data_wait": "loader", "launch_sleep": "launches", "competing_load": "imbalance",
            "cpu_quota": "imbalance", "slow_link": "network"}  # fmt: skip

STATES = {"computing": "computing", "copies": "computing", "exposed_communication": "communication",
          "launch_gap_prepare": "gaps", "launch_gap_call": "gaps", "waiting_for_data": "data",
          "waiting_for_rank": "ranks", "idle": "idle"}  # fmt: skip


def states_s(record: Record) -> list[dict[str, float]]:
    """Return the seconds of each place of each of four recorded steps."""
    times = measurement(record, "profiled_time").samples
    found = [dict.fromkeys(STATES.values(), 0.0) for _ in range(4)]
    for one in record.measurements:
        if one.metric == "share" and one.method in STATES:
            for at, places in enumerate(found):
                places[STATES[one.method]] += one.samples[at] * times[min(at, len(times) - 1)]
    return found


def of_measurements() -> Iterator[SlowStep]:
    """Yield predicted steps that are longer, place by place, as a measured one was by its injected loss."""
    for folder in ("profiling", "profiling_h100", "profiling_h200"):
        records = {(one.cell.workload, one.cell.optimization): one for one in read_records(RESULTS / folder)}
        for (workload, injection), record in records.items():
            if injection not in INJECTED:
                continue
            plain, rng = records[workload, "baseline"], random.Random(workload + injection)
            for with_loss, without in zip(states_s(record), states_s(plain), strict=True):
                _, answer = answered(rng.choice((0, 3, 4, 6, 7, 8, 9)))
                assert answer.seconds is not None
                predicted_s, whole_s = answer.layouts[0].step_s, sum(without.values())
                assert predicted_s is not None
                places = {place: answer.seconds.places_s[place] for place in PLACES}
                for place, seconds in with_loss.items():
                    added = (seconds - without[place]) / whole_s * predicted_s.likely
                    places[place] = max(places[place] + added, 0.0)
                yield SlowStep(INJECTED[injection], answer, sum(places.values()), places)


KNOWN: dict[str, Callable[[SlowStep], OwnStep]] = {
    "places": lambda step: OwnStep(step.seconds, (), step.places_s),
    "timers": lambda step: step.log or OwnStep(step.seconds, ()),
    "data alone": lambda step: OwnStep(step.seconds, (), {"data": step.places_s["data"]}),
    "seconds alone": lambda step: OwnStep(step.seconds, ()),
}


def share_named(steps: list[SlowStep], known: str) -> tuple[float, float]:
    """Return the share of steps whose cause is among the first two, and how many causes reach the seconds."""
    named, reaching = 0, 0
    for one in steps:
        assert one.answer.seconds is not None
        found = likely_causes(one.answer.seconds.causes, KNOWN[known](one), one.answer)
        low, likely, high = one.answer.layouts[0].step_s or (0.0, 0.0, 0.0)
        named += one.family in {cause.family for cause in found[:2]}
        reaching += sum(low <= one.seconds * likely / cause.step_s <= high for cause in found)
    return named / len(steps), reaching / len(steps)


def test_the_cause_is_among_the_first_two():
    for what, steps in (("model", list(of_the_model())), ("measured", list(of_measurements()))):
        clear = [one for one in steps if one.times >= CLEAR]
        assert len(steps) >= 60
        assert len({one.family for one in steps}) >= 4
        assert len(steps) - len(clear) >= 5
        for known, least, least_clear in (("places", 0.7, 0.8), ("seconds alone", 0.3, 0.3)):
            shown(what, known, steps, least)
            shown(what, known, clear, least_clear)
        if what == "model":
            shown(what, "data alone", clear, 0.3)
            printed = [one for one in clear if one.prints]
            assert len(printed) >= 40
            shown("model", "timers", printed, 0.8)
            shown("model", "timers", clear, 0.7)


def shown(what: str, known: str, steps: list[SlowStep], least: float) -> None:
    share, reaching = share_named(steps, known)
    print(f"{what}, {known}: {share:.0%} of {len(steps)}; {reaching:.1f} causes reach the seconds")
    assert share >= least
