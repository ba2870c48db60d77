"""How sure an answer is, on made-up answers near the limit: intervals, verdicts, and what may turn them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from harness.answer import Answer, Interval, Memory, OtherChoice, Peak, RankedLayout
from harness.ask import memory_lines
from harness.ask.certainty import error_of, with_certainty
from harness.config.code_fingerprint import ROOT
from harness.frameworks.read import read_own_text
from harness.question import Adapters, FieldOrigin, KeyRead, Question

ROOM_B = 80e9
ERRORS = yaml.safe_load((ROOT / "conf/engine_errors.yaml").read_text())
DENSE: dict[str, Any] = {"num_hidden_layers": 2}
EXPERTS = {**DENSE, "num_local_experts": 8}
LAYOUT = {"dp": 8, "tp": 1, "pp": 1, "cp": 1}


def asked(*directions, key=None, **fields):
    """Return a question with a key that is not modelled for each direction of memory."""
    of_all = {"value": "on", "status": "not modelled", "means": "tiles", **(key or {})}
    keys = tuple(KeyRead(key=f"key_{at}", memory=one, **of_all) for at, one in enumerate(directions))
    named = {"config": DENSE, "devices": 8, "seq_len": 64, "model_name": "made up"}
    return Question(keys=keys, **{**named, **fields})


def memory_of(allocated_B, reserved_B, fits, **more):
    likely = {"allocated_B": Interval(*[allocated_B] * 3), "reserved_B": Interval(*[reserved_B] * 3)}
    return Memory(usable_B=ROOM_B + 1e9, room_B=ROOM_B, largest_micro_batch=int(fits), **likely, **more)


def account(needed_GB, **memory):
    """Return an answer of the account that needs so much, with a twentieth of it for fragmentation."""
    needed_B = needed_GB * 1e9
    fits = needed_B <= ROOM_B
    layout = RankedLayout(title="dp 8", parts=LAYOUT, needed_B=needed_B, room_B=ROOM_B, fits=fits)
    sized = memory_of(needed_B / 1.05, needed_B, fits, **memory)
    return Answer(verdict=VERDICTS[fits], engine="account", memory=sized, layouts=(layout,))


VERDICTS = {True: "fits", False: "does not fit"}


def dry_run(allocated_GB, reserved_GB, fits, *others, expandable=False):
    """Return an answer of a dry run; by default expandable segments change nothing."""
    allocated_B, reserved_B = allocated_GB * 1e9, reserved_GB * 1e9
    peak = Peak(
        micro_batch_size=1,
        fits=fits,
        allocated_B=allocated_B,
        reserved_B=reserved_B,
        fits_expandable=fits or expandable,
        fits_with_slack=fits and allocated_B * 1.02 <= ROOM_B,
    )
    memory = memory_of(allocated_B, reserved_B, fits, peaks=(peak,))
    choices = tuple(OtherChoice(choice=c, fits=f, largest_micro_batch=int(f)) for c, f in others)
    return Answer(verdict=VERDICTS[fits], likely_fits=fits, engine="dry run", memory=memory, others=choices)


def routed(needed_GB, even_GB, uneven_GB):
    answer = account(needed_GB, even_routing_B=even_GB * 1e9, uneven_routing_B=uneven_GB * 1e9)
    return answer, asked(config=EXPERTS)


PAGE: dict[str, Any] = {"framework": "Megatron-LM"}
"""Of what a page describes, whose error is that of the public runs of its kind."""

FLASH = {"attention": FieldOrigin("key", "flash_attention")}
OPTIMIZER, LOGITS = "optimizer_impl=default", "keep_logits=model"
JUDGED = [
    ([], account(60), asked()),
    ([], account(95), asked("none", "raises")),
    ([], account(30), asked("raises", "either")),
    ([], account(300), asked("lowers", "either")),
    ([], *routed(60, 50, 65)),
    ([], dry_run(60, 62, True, (OPTIMIZER, True)), asked()),
    ([], dry_run(70, 79, True), asked()),  # more is reserved at most, and the allocator frees its cache
    ([], dry_run(90, 95, False, (OPTIMIZER, False)), asked()),
    (["error"], account(78), asked("lowers")),  # which is no reason for too much
    ([], account(52), asked(**PAGE)),  # likely enough, and it says how likely
    (["error"], account(79), asked(**PAGE)),
    (["error"], account(82), asked("raises")),
    (["key"], account(95), asked("lowers")),
    (["key"], account(60), asked("raises", "lowers")),
    (["key", "key"], account(60), asked("raises", "either")),
    (["key", "error"], account(78), asked("raises")),
    (["routing"], *routed(70, 60, 78)),
    (["routing"], *routed(90, 75, 99)),
    (["error"], dry_run(79, 79.5, True), asked()),
    (["error"], dry_run(80.5, 81, False), asked()),
    (["allocator"], dry_run(70, 95, False, expandable=True), asked()),
    (["assumption"], dry_run(60, 62, True, (OPTIMIZER, True), (LOGITS, False)), asked()),
    (["assumption", "error"], dry_run(79, 79.5, True, (OPTIMIZER, False)), asked()),
    (["key"], account(400, parts_B={"states": 40e9}), asked("lowers", key={"to_states": True})),  # short ones
    ([], account(400, parts_B={"states": 90e9}), asked("lowers", key={"to_states": True})),
    ([], account(400, parts_B={"states": 40e9}), asked("lowers")),
    (["key"], dry_run(240, 250, False), asked("lowers", key={"least": 0.25})),  # it leaves less than others
    ([], dry_run(240, 250, False), asked("lowers")),
    (["key"], dry_run(100, 110, False).with_(without=("attention",)), asked(origins=FLASH)),
    ([], dry_run(100, 110, False).with_(without=("attention",)), asked()),  # that the model lacks
    (["key"], dry_run(100, 102, False), asked(sharing="zero", zero=2, offload=("optimizer",))),
    ([], dry_run(100, 102, False), asked(sharing="zero", zero=3, offload=("optimizer", "parameters"))),
]
"""What may turn a verdict, of the answer to the question."""


@pytest.mark.parametrize(("kinds", "answer", "question"), JUDGED)
def test_near_the_limit_what_may_turn_the_verdict_stands_on_top_and_elsewhere_it_is_firm(
    kinds, answer, question
):
    judged = with_certainty(answer, question)
    assert [turn.kind for turn in judged.turns] == kinds
    assert judged.verdict == ("depends" if kinds else answer.verdict)
    assert not kinds or judged.likely_fits == (answer.verdict == "fits")
    if answer.engine == "dry run":
        said = list(memory_lines.first_lines(judged, question, "none"))
    else:
        said = list(memory_lines.account_lines(judged, question, Path("answer.json")))
    assert re.match(rf"{judged.verdict}( \(\d+% likely\))?: ", said[0])
    assert said[1].startswith("Depends on ") == bool(kinds)
    for turn in judged.turns:
        if turn.kind == "routing":  # another routing has the same fragmentation
            other_B = {"even": answer.memory.even_routing_B, "uneven": answer.memory.uneven_routing_B}
            assert turn.peak_B == pytest.approx(1.05 * other_B[turn.other])


def test_what_a_key_adds_at_most_bounds_how_far_it_raises():
    """A frozen tower of 3 GB turns what fits with 1 GB to spare, and nothing that has room for it."""
    key = KeyRead(key="tower", status="not modelled", means="more", memory="raises", most_B=3e9)
    for needed_GB, turning in ((60, []), (75, ["key"])):
        judged = with_certainty(account(needed_GB), msgspec.structs.replace(asked(), keys=(key,)))
        error = ERRORS["account"]["reserved"]["high"]
        assert judged.memory.reserved_B.high == pytest.approx(needed_GB * 1e9 * error + 3e9)
        assert [turn.kind for turn in judged.turns] == turning


@pytest.mark.parametrize(
    ("answer", "fields", "rows"),
    [
        (account(60), {}, ("account", "allocated", "reserved")),
        (account(60), {"config": EXPERTS}, ("account", "allocated_experts", "reserved_experts")),
        (dry_run(60, 62, True), {"devices": 1}, ("dry run", "allocated", "reserved_one")),
        (dry_run(60, 62, True), {}, ("dry run", "allocated", "reserved_several")),
    ],
)
@pytest.mark.parametrize("keys", [("lowers",), ("raises", "none"), ("either",)])
def test_intervals_are_the_recorded_errors_widened_by_keys(answer, fields, rows, keys):
    judged = with_certainty(answer, asked(*keys, **fields))
    low = ERRORS["keys"]["lowers"] if {"lowers", "either"} & {*keys} else 1
    high = ERRORS["keys"]["raises"] if {"raises", "either"} & {*keys} else 1
    engine, *kinds = rows
    intervals = (judged.memory.allocated_B, judged.memory.reserved_B)
    likely = (answer.memory.allocated_B.likely, answer.memory.reserved_B.likely)
    for row, interval, B in zip(kinds, intervals, likely, strict=True):
        error = ERRORS[engine][row]
        assert interval == pytest.approx((B * error["low"] * low, B, B * error["high"] * high))


@pytest.mark.parametrize(("filled", "chance"), [("low", 0.05), ("likely", 0.5), ("high", 0.95)])
def test_the_chance_to_fit_is_that_of_the_interval_of_reserved_bytes(filled, chance):
    times = ERRORS["as_asked"]["account"]["reserved"]["several devices"][filled]
    judged = with_certainty(account(80 / times), asked(**PAGE))
    assert judged.memory.chance_to_fit == pytest.approx(chance, abs=1e-4)
    for answer in (account(60), dry_run(70, 90, True)):  # a chosen error, and what is reserved beyond need
        assert with_certainty(answer, asked()).memory.chance_to_fit is None


def test_adapters_that_fsdp1_shards_have_the_error_of_published_ones():
    """The dry run takes FSDP2 in its place."""
    question = asked(sharing="fsdp1", zero=3, adapters=Adapters(rank=8))
    published = ERRORS["as_asked"]["dry run"]["allocated"]["adapters"]
    assert error_of("dry run", question, "allocated") == published
    alone = msgspec.structs.replace(question, sharing="fsdp2")
    assert error_of("dry run", alone, "allocated") != published


def test_a_search_is_not_judged():
    assert with_certainty(account(78), asked(search=True)).verdict == "fits"


LAUNCHED = "model_name_or_path: Qwen/Qwen3-8B\ncutoff_len: 2048\nstage: sft\nfinetuning_type: full\n"


NO_SHARDS = "deepspeed: {zero_optimization: {stage: 0}}\n"


@pytest.mark.parametrize(
    ("more", "states_GB", "turns"), [("", 130.0, ["assumption"]), ("", 60.0, []), (NO_SHARDS, 130.0, [])]
)
def test_sharding_that_a_file_leaves_to_its_launcher_may_turn_what_does_not_fit(more, states_GB, turns):
    """Of 181 GB, of which states on 16 ranks leave 51 GB + 8 GB, or more than there is room for."""
    replace = msgspec.structs.replace
    question = replace(read_own_text(LAUNCHED + more, "llama_factory", ".yaml"), devices=16)
    said_already = asked("lowers", key={"field": "sharing", "least": 0.25}).keys
    question = replace(question, keys=said_already if turns else question.keys)
    answer, states = dry_run(181, 181, False), {"optimizer_states": states_GB * 1e9}
    peak = replace(answer.memory.peaks[0], by_kind_B=states, micro_batch_size=question.micro_batch_size)
    judged = with_certainty(answer.with_(memory=replace(answer.memory, peaks=(peak,))), question)
    assert [turn.kind for turn in judged.turns] == turns
    assert judged.verdict == ("depends" if turns else "does not fit")


def test_a_fused_kernel_of_a_program_leaves_the_peak_without_its_scores():
    """425 of 474 GB, of MPT in transformers; LLM Foundry's own fuses attention by default."""
    answer = dry_run(474, 477, False).with_(without=("attention",))
    (peak,) = answer.memory.peaks
    live_B = {"attention scores: softmax": 400e9, "attention scores: others": 25e9, "logits: all": 9e9}
    memory = msgspec.structs.replace(answer.memory, peaks=(msgspec.structs.replace(peak, live_B=live_B),))
    assert with_certainty(answer.with_(memory=memory), asked(format="hugging_face")).verdict == "does not fit"
    explicit = with_certainty(answer.with_(memory=memory), asked(format="torchtune", attention="explicit"))
    assert explicit.verdict == "does not fit"
    found = with_certainty(answer.with_(memory=memory), asked(format="llm_foundry"))
    left_B = 477e9 * (1 - 425 / 474) * ERRORS["dry run"]["reserved_several"]["low"]
    assert (found.verdict, found.memory.reserved_B.low) == ("depends", pytest.approx(left_B))
