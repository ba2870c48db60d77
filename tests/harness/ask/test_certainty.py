"""How sure an answer is, on made-up answers near the limit: intervals, verdicts, and what may turn them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from harness.answer import Answer, Interval, Memory, OtherChoice, Peak, RankedLayout, on_disk
from harness.ask import fit, memory_lines
from harness.ask.certainty import with_certainty
from harness.config.code_fingerprint import ROOT
from harness.frameworks.read import read_own_text
from harness.question import KeyRead, Question

ROOM_B = 80e9
ERRORS = yaml.safe_load((ROOT / "conf/engine_errors.yaml").read_text())
DENSE: dict[str, Any] = {"num_hidden_layers": 2}
EXPERTS = {**DENSE, "num_local_experts": 8}
LAYOUT = {"dp": 8, "tp": 1, "pp": 1, "cp": 1}


def key(direction: str, name: str = "tiled_mlp") -> KeyRead:
    return KeyRead(key=name, value="on", status="not modelled", means="tiles of the MLP", memory=direction)


def asked(*keys: KeyRead, **fields: Any) -> Question:
    named = {"config": DENSE, "devices": 8, "seq_len": 64, "model_name": "made up"}
    return Question(keys=keys, **{**named, **fields})


def account(needed_GB: float, **memory: Any) -> Answer:
    """Return an answer of the account that needs so much, with a twentieth of it for fragmentation."""
    needed_B = needed_GB * 1e9
    fits = needed_B <= ROOM_B
    sized = Memory(
        usable_B=ROOM_B + 1e9,
        room_B=ROOM_B,
        allocated_B=Interval(*[needed_B / 1.05] * 3),
        reserved_B=Interval(*[needed_B] * 3),
        largest_micro_batch=int(fits),
        **memory,
    )
    layout = RankedLayout(title="dp 8", parts=LAYOUT, needed_B=needed_B, room_B=ROOM_B, fits=fits)
    verdict = "fits" if fits else "does not fit"
    return Answer(verdict=verdict, engine="account", memory=sized, layouts=(layout,))


def dry_run(
    allocated_GB: float,
    reserved_GB: float,
    fits: bool,
    expandable: bool | None = None,
    others: tuple[OtherChoice, ...] = (),
) -> Answer:
    """Return an answer of a dry run; by default expandable segments change nothing."""
    allocated_B, reserved_B = allocated_GB * 1e9, reserved_GB * 1e9
    peak = Peak(
        micro_batch_size=1,
        fits=fits,
        allocated_B=allocated_B,
        reserved_B=reserved_B,
        fits_expandable=fits if expandable is None else expandable,
        fits_with_slack=fits and allocated_B * 1.02 <= ROOM_B,
    )
    memory = Memory(
        usable_B=ROOM_B + 1e9,
        room_B=ROOM_B,
        allocated_B=Interval(*[allocated_B] * 3),
        reserved_B=Interval(*[reserved_B] * 3),
        peaks=(peak,),
        largest_micro_batch=int(fits),
    )
    verdict = "fits" if fits else "does not fit"
    return Answer(verdict=verdict, likely_fits=fits, engine="dry run", memory=memory, others=others)


def choice(fits: bool, name: str = "optimizer_impl=default") -> OtherChoice:
    return OtherChoice(choice=name, fits=fits, largest_micro_batch=int(fits))


FIRM = [
    ("fits", account(60), asked()),
    ("does not fit", account(95), asked()),
    ("fits", account(60), asked(key("none"))),
    ("does not fit", account(95), asked(key("none"))),
    ("fits", account(60), asked(key("lowers"))),
    ("does not fit", account(95), asked(key("raises"))),
    ("fits", account(30), asked(key("raises"), key("either"))),
    ("does not fit", account(300), asked(key("lowers"), key("either"))),
    ("fits", account(60, even_routing_B=50e9, uneven_routing_B=65e9), asked(config=EXPERTS)),
    ("fits", dry_run(60, 62, True), asked()),
    ("fits", dry_run(70, 79, True), asked()),  # more is reserved at most, and the allocator frees its cache
    ("fits", dry_run(60, 62, True, others=(choice(True),)), asked()),
    ("does not fit", dry_run(90, 95, False), asked()),
    ("does not fit", dry_run(90, 95, False, others=(choice(False),)), asked()),
]

TURNED = [
    (["error"], account(78), asked()),
    (["error"], account(82), asked()),
    (["error"], account(78), asked(key("none"))),
    (["error"], account(78), asked(key("lowers"))),  # which is no reason for too much
    (["error"], account(82), asked(key("raises"))),
    (["key"], account(60), asked(key("raises"))),
    (["key"], account(60), asked(key("either"))),
    (["key"], account(95), asked(key("lowers"))),
    (["key"], account(95), asked(key("either"))),
    (["key"], account(60), asked(key("raises"), key("lowers", "other"))),
    (["key", "key"], account(60), asked(key("raises"), key("either", "other"))),
    (["key", "error"], account(78), asked(key("raises"))),
    (["routing"], account(70, even_routing_B=60e9, uneven_routing_B=78e9), asked(config=EXPERTS)),
    (["routing"], account(90, even_routing_B=75e9, uneven_routing_B=99e9), asked(config=EXPERTS)),
    (["error"], dry_run(79, 79.5, True), asked()),
    (["error"], dry_run(80.5, 81, False), asked()),
    (["allocator"], dry_run(70, 95, False, expandable=True), asked()),
    (["assumption"], dry_run(60, 62, True, others=(choice(False),)), asked()),
    (
        ["assumption"],
        dry_run(60, 62, True, others=(choice(True), choice(False, "keep_logits=model"))),
        asked(),
    ),
    (["assumption", "error"], dry_run(79, 79.5, True, others=(choice(False),)), asked()),
]


def printed(answer: Answer, question: Question) -> list[str]:
    if answer.engine == "dry run":
        return list(memory_lines.first_lines(answer, question, "none"))
    return list(memory_lines.account_lines(answer, question, Path("answer.json")))


@pytest.mark.parametrize(("verdict", "answer", "question"), FIRM)
def test_away_from_the_limit_a_verdict_is_firm(verdict: str, answer: Answer, question: Question) -> None:
    judged = with_certainty(answer, question)
    assert (judged.verdict, judged.turns) == (verdict, ())
    said = printed(judged, question)
    assert said[0].startswith(f"{verdict}: ")
    assert "Depends" not in said[1]


@pytest.mark.parametrize(("kinds", "answer", "question"), TURNED)
def test_near_the_limit_what_may_turn_the_verdict_stands_on_top(
    kinds: list[str], answer: Answer, question: Question
) -> None:
    judged = with_certainty(answer, question)
    assert [turn.kind for turn in judged.turns] == kinds
    assert judged.verdict == "depends"
    assert judged.likely_fits == (answer.verdict == "fits")
    said = printed(judged, question)
    assert said[0].startswith("depends: ")
    assert said[1].startswith("Depends on ")
    top = " ".join(" ".join(said).split("made up")[0].split())  # what comes before the model
    assert top.count("Depends on ") == len(kinds)
    for turn in judged.turns:
        assert {"error": f"the {turn.name}'s error", "key": f"{turn.name}={turn.value}"}.get(
            turn.kind, ""
        ) in top
        assert turn.kind != "routing" or f"{(turn.peak_B or 0) / 1e9:.1f} GB" in top


def test_what_another_routing_needs_has_the_same_fragmentation() -> None:
    answer = account(70, even_routing_B=60e9, uneven_routing_B=78e9)
    (turn,) = with_certainty(answer, asked(config=EXPERTS)).turns
    assert (turn.other, turn.peak_B) == ("uneven", pytest.approx(1.05 * 78e9))


@pytest.mark.parametrize(
    ("answer", "question", "rows"),
    [
        (account(60), asked(), ("account", "allocated", "reserved")),
        (account(60), asked(config=EXPERTS), ("account", "allocated_experts", "reserved_experts")),
        (dry_run(60, 62, True), asked(devices=1), ("dry run", "allocated", "reserved_one")),
        (dry_run(60, 62, True), asked(), ("dry run", "allocated", "reserved_several")),
    ],
)
@pytest.mark.parametrize("keys", [(), ("none",), ("lowers",), ("raises",), ("either",), ("lowers", "raises")])
def test_intervals_are_the_recorded_errors_widened_by_keys(
    answer: Answer, question: Question, rows: tuple[str, str, str], keys: tuple[str, ...]
) -> None:
    judged = with_certainty(answer, asked(*map(key, keys), config=question.config, devices=question.devices))
    low = ERRORS["keys"]["lowers"] if {"lowers", "either"} & {*keys} else 1
    high = ERRORS["keys"]["raises"] if {"raises", "either"} & {*keys} else 1
    memory, before = judged.memory, answer.memory
    assert memory is not None
    assert before is not None
    engine, *kinds = rows
    intervals = (memory.allocated_B, memory.reserved_B)
    for row, interval, was in zip(kinds, intervals, (before.allocated_B, before.reserved_B), strict=True):
        error = ERRORS[engine][row]
        expected = (was.likely * error["low"] * low, was.likely, was.likely * error["high"] * high)
        assert interval == pytest.approx(expected)
    disk = on_disk(judged)
    names = [f"peak_{kind}{end}_GB" for kind in ("allocated", "reserved") for end in ("_low", "", "_high")]
    assert [disk[name] for name in names] == pytest.approx([one / 1e9 for each in intervals for one in each])


def test_a_search_and_a_refusal_are_not_judged() -> None:
    layouts = account(78)
    searched = with_certainty(layouts, asked(search=True))
    assert (searched.verdict, searched.turns) == ("fits", ())
    refused = Answer(verdict="refused", reason="no")
    assert with_certainty(refused, asked()) == refused


def test_every_verdict_has_a_status_of_its_own() -> None:
    assert fit.STATUS == {"fits": 0, "does not fit": 3, "depends": 5, "refused": 2}


LAUNCHED = (
    "model_name_or_path: Qwen/Qwen3-8B\ncutoff_len: 2048\nstage: sft\nfinetuning_type: full\nbf16: true\n"
)


@pytest.mark.parametrize(
    ("file", "states_GB", "turns"),
    [
        (LAUNCHED, 130.0, ["assumption"]),  # on 16 ranks 51 GB + 8 GB are left of 181
        (LAUNCHED, 60.0, []),  # and here more than there is room for
        (LAUNCHED + "deepspeed: {zero_optimization: {stage: 0}}\n", 130.0, []),  # the file shards nothing
    ],
)
def test_sharding_that_a_file_leaves_to_its_launcher_may_turn_what_does_not_fit(
    file: str, states_GB: float, turns: list[str]
) -> None:
    question = msgspec.structs.replace(read_own_text(file, "llama_factory", ".yaml"), devices=16)
    answer = dry_run(181, 181, False)
    assert answer.memory
    peak = msgspec.structs.replace(answer.memory.peaks[0], by_kind_B={"optimizer_states": states_GB * 1e9})
    peak = msgspec.structs.replace(peak, micro_batch_size=question.micro_batch_size)
    answer = answer.with_(memory=msgspec.structs.replace(answer.memory, peaks=(peak,)))
    judged = with_certainty(answer, question)
    assert [turn.kind for turn in judged.turns] == turns
    assert judged.verdict == ("depends" if turns else "does not fit")


@pytest.mark.parametrize(("states_GB", "verdict"), [(40.0, "depends"), (90.0, "does not fit")])
def test_where_sequences_may_be_short_only_states_are_sure_to_be_there(states_GB, verdict):
    """Five times the room is needed at the stated length, of which half is not enough to turn the verdict."""
    short = msgspec.structs.replace(key("lowers", "padded_or_packed"), to_states=True)
    answer = account(400.0, parts_B={"states": states_GB * 1e9})
    assert with_certainty(answer, asked(key("lowers"))).verdict == "does not fit"
    found = with_certainty(answer, asked(short))
    assert found.verdict == verdict
    assert [turn.name for turn in found.turns] == (["padded_or_packed"] if verdict == "depends" else [])
