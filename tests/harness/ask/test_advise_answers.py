"""harness.advise: seconds printed and kept, one's own step and its causes, and the answer as a file."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from itertools import pairwise

import msgspec
import numpy as np
import pytest
from own_texts import MEGATRON, TITAN
from scipy.stats import norm

from harness.answer import Answer, Interval, RankedLayout, StepAnswer, StepCause
from harness.ask import advise
from harness.ask.advise import answer_lines, own_lines
from harness.ask.certainty import error_of
from harness.ask.cost import predicted_lines
from harness.ask.engines import answer_of
from harness.ask.mine import FAMILIES, OwnStep, likely_causes, lines, own_step, timers_of_log
from harness.ask.words import ADVISE, step_question, words_of
from harness.ask.written import written
from harness.commands.entry import DONE, NO
from harness.commands.grammar import CommandWords, datasheet
from harness.config.code_fingerprint import ROOT
from harness.config.validation import ConfigError
from harness.frameworks.logs import read_log
from harness.frameworks.read import read_own_text
from harness.frameworks.table import framework_named
from harness.question import Adapters, FieldOrigin, KeyRead, question_of

MODEL = f"model={ROOT}/tests/data/configs/llama-3.1-8b.json gpus=16 seq_len=8192 global_batch_size=64"


def advised(capsys, folder, words):
    """Return the status, the lines and answer.json."""
    status = advise.main([*words.split(), f"out={folder / 'out'}"])
    latest = max((folder / "out").glob("*/answer.json"), key=lambda file: file.stat().st_mtime_ns)
    return status, capsys.readouterr().out.splitlines(), json.loads(latest.read_text())


def asked(words):
    read = words_of(words.split(), ADVISE)
    return read, step_question(read)


def test_what_is_printed_of_a_layout_is_what_is_kept(tmp_path, capsys):
    status, said, disk = advised(capsys, tmp_path, f"{MODEL} layout=tp:2 rate=20/node show=all")
    (layout,) = disk["layouts"]
    low_s, step_s, high_s = layout["step_s"]
    assert [disk[name] for name in ("step_low_s", "step_s", "step_high_s")] == layout["as_run_s"]
    assert disk["step_tuned_s"] == step_s < disk["step_s"]
    assert (status, disk["verdict"], disk["engine"]) == (DONE, "fits", "step time")
    assert low_s < step_s < high_s
    assert said[0] == f"{layout['title']}: {step_s:.3g} s per step (90 %: {low_s:.3g} … {high_s:.3g})"
    assert layout["tokens_per_s_per_device"] * step_s * 16 == pytest.approx(64 * 8192)
    peak = float(datasheet("h100_80gb")["matmul_FLOP_per_s"]["bf16"])
    assert layout["mfu"] * peak == pytest.approx(layout["model_FLOP_per_s"])
    assert sum(disk["seconds"]["parts_s"].values()) == pytest.approx(step_s, rel=1e-6)
    usd = 2.5 / 3600 / layout["tokens_per_s_per_device"] * 1e12
    (price,) = (line for line in said if line.startswith("At $2.5 per GPU-hour"))
    ends = " … ".join(f"{usd * end / step_s:,.0f}" for end in (low_s, high_s))
    assert f"${usd:,.0f} per 10^12 tokens (90 %: {ends})" in price
    assert 0 < disk["peak_allocated_GB"] < disk["peak_reserved_GB"] < 80


def test_layouts_come_by_speed_and_each_has_the_seconds_of_its_own_question(tmp_path, capsys):
    status, said, disk = advised(capsys, tmp_path, MODEL)
    assert status == DONE
    layouts = disk["layouts"]
    rates = [one["tokens_per_s_per_device"] * one["chance_to_run"] for one in layouts]
    assert all(1.05 * rate > lower for rate, lower in pairwise(rates))  # retries cost up to 5 %
    assert disk["layouts_tried"] > disk["layouts_that_fit"] >= len(layouts) > 5
    assert [line.split("  ")[0] for line in said if re.match(r"\d\. ", line)] == [
        f"{rank}. {one['title']}" for rank, one in enumerate(layouts[:8], 1)
    ]
    parts = layouts[0]["parts"]
    named = ",".join(f"{name}:{parts[name]}" for name in ("dp", "tp", "pp", "cp", "virtual_stages", "zero"))
    recompute = ("none", "selective", "full")[parts["recompute"]]
    words = f"{MODEL} layout={named} micro_batch_size={parts['micro_batch_size']} recompute={recompute}"
    assert advised(capsys, tmp_path, words)[2]["step_tuned_s"] == pytest.approx(layouts[0]["step_s"][1])


def test_no_layout_that_fits_is_a_no(tmp_path, capsys):
    model = f"model={ROOT}/tests/data/configs/deepseek-v3.json gpus=8 seq_len=4096"
    for words, says in ((model, "no layout fits"), (f"{model} layout=ep:8", "does not fit: ")):
        status, said, disk = advised(capsys, tmp_path, words)
        assert (status, disk["verdict"]) == (NO, "does not fit")
        assert said[0].startswith(says)


@pytest.mark.parametrize("verdict", ["fits", "depends", "does not fit"])
def test_the_first_line_has_the_verdict_and_never_another(verdict):
    one = RankedLayout(title="dp 2", parts={}, needed_B=9.0, room_B=10.0, fits=verdict == "fits",
                       step_s=Interval(1.0, 2.0, 3.0), tokens_per_s_per_device=5.0)  # fmt: skip
    found, question = Answer(verdict=verdict, layouts=(one,)), asked(f"{MODEL} layout=tp:2")[1]
    first = next(answer_lines(found, question, None, None))
    assert first == ("" if verdict == "fits" else f"{verdict}: ") + "dp 2: 2 s per step (90 %: 1 … 3)"
    said = " ".join(own_lines("a.toml", found, found, None)) + " ".join(
        predicted_lines(found, question, 1e9, [(2.0, "yours")])
    )
    for words, of in (("does not fit", "does not fit"), ("may not fit", "depends")):
        assert (words in said) == (verdict == of)


def test_layouts_run_as_surely_as_bytes_of_their_kind_are_known():
    """Adapters' bytes are farther off than those of training whole: a fuller device runs less surely."""
    question = question_of(config=json.loads((ROOT / "tests/data/configs/llama-3.1-8b.json").read_text()),
                           device="a100_40gb", devices=8, program="torchtitan", sharing="fsdp2", search=True,
                           global_batch_size=64, seq_len=4096, network_B_per_s=50e9)  # fmt: skip
    adapted = msgspec.structs.replace(question, adapters=Adapters(rank=16))
    error = error_of("account", adapted, "reserved")
    deviation = math.log(error["high"] / error["likely"]) / 1.645
    layouts = answer_of(adapted, seconds=True).layouts
    for one in layouts:
        free = math.log(one.room_B / one.needed_B / error["likely"])
        if free > 0 and one is not layouts[0]:
            assert one.chance_to_run == pytest.approx(norm.cdf(free / deviation), abs=1e-4)
    assert len({round(one.chance_to_run or 0, 2) for one in layouts}) > 3
    key = KeyRead(key="draft", value="on", status="not modelled", means="a second model", memory="raises")
    first = answer_of(msgspec.structs.replace(adapted, keys=(key,)), seconds=True).layouts[0]
    assert (first.chance_to_run or 0) < (layouts[0].chance_to_run or 0)


def test_the_likeliest_cause_fits_and_is_common_before_one_looks():
    """A family's prior times the mean over its sizes of densities of a normal logarithm, by scipy."""
    given = (("network", 2.0, 0.6), ("network", 4.0, 0.4), ("clocks", 3.0, 1.0), ("loader", 3.9, 1.0))
    causes = [StepCause(family=family, title="", step_s=s, weight=weight) for family, s, weight in given]
    for own_s, half in ((4.0, 1.2), (2.1, 1.6), (60.0, 1.5)):
        answer = made_up()
        step_s = Interval(1 / half, 1.0, half)
        answer = answer.with_(layouts=(msgspec.structs.replace(answer.layouts[0], step_s=step_s),))
        density = norm.pdf(math.log(own_s), np.log([s for _, s, _ in given]), math.log(half) / 1.645)
        of_family = Counter()
        for one, value in zip(causes, density, strict=True):
            of_family[one.family] += FAMILIES[one.family].prior * one.weight * value
        found = likely_causes(causes, OwnStep(own_s, ()), answer)
        assert [one.family for one in found] == [family for family, _ in of_family.most_common()]
        assert next(one for one in found if one.family == "network") is causes[density[:2].argmax()]


def own(mine):
    """Return the user's own step, of a layout with full recomputation."""
    words, question = asked(f"{MODEL} layout=tp:2 recompute=full")
    typed = {**words.typed, "mine": f"mine={mine}"}
    return own_step(CommandWords(words.paths, {**words.values, "mine": mine}, typed), question)


def test_ones_own_step_is_also_a_rate_and_where_its_seconds_go():
    matrices, scores = flops_per_token(8192)
    rate = own("400TFLOP/s")
    assert rate.seconds == pytest.approx(64 * 8192 * (matrices + scores) / 16 / 400e12, rel=1e-3)
    ratio = (matrices + scores) / (matrices + scores / 2)
    assert rate.counts["by megatron's formula"] == pytest.approx(ratio, rel=1e-3)
    assert rate.counts["recomputation included"] == 0.75
    assert own("4.1s,data:300ms").places_s == {"data": pytest.approx(0.3)}
    for wrong in ("4.1s,nothing:1s", "data:1s", "1s,data:3s", "4s,5s"):
        with pytest.raises(ConfigError, match="mine="):
            own(wrong)


def made_up(*causes):
    """Return a step of 2 s at 400 TFLOP/s, with causes."""
    layout = RankedLayout(title="dp 8", parts={}, needed_B=1.0, room_B=2.0, fits=True,
                          step_s=Interval(1.8, 2.0, 2.2), model_FLOP_per_s=400e12)  # fmt: skip
    named = tuple(StepCause(family=family, title=title, step_s=step_s) for family, title, step_s in causes)
    return Answer(verdict="fits", layouts=(layout,), seconds=StepAnswer(causes=named))


def test_a_slower_step_is_explained_by_what_slows_and_a_faster_one_by_what_does_not():
    answer = made_up(
        ("network", "slow", 4.0), ("batch", "half", 1.0), ("clocks", "less", 2.6), ("loader", "all", 90.0)
    )
    slower = list(lines(OwnStep(4.0, ()), answer))
    assert slower[0].startswith("Yours: 4 s, 2.00 times the prediction, above the 90 % interval; 200 TFLOP/s")
    causes = [line for line in slower if re.match(r"  \w+: [\d.]+ s", line)]
    assert [line.split(":")[0].strip() for line in causes] == ["slow", "less", "all"]
    faster = [line for line in lines(OwnStep(1.0, ()), answer) if re.match(r"  \w+: [\d.]+ s", line)]
    assert [line.split(":")[0].strip() for line in faster] == ["half"]
    assert "inside the 90 % interval" in next(lines(OwnStep(2.1, ()), answer))


def flops_per_token(seq_len):
    """Return those of Llama 3.1 8B: of its matrices, and of causal attention's full scores."""
    matrices = 32 * (2 * 4096**2 + 2 * 4096 * 1024 + 3 * 4096 * 14336) + 128256 * 4096
    return 6 * matrices, 12 * 32 * 4096 * seq_len


def test_ones_own_seconds_have_a_unit_and_flops_by_each_count():
    matrices, scores = flops_per_token(8192)
    for mine, seconds in {"4.1s": 4.1, "850ms": 0.85, "2 min": 120.0}.items():
        step = own(mine)
        assert step.seconds == pytest.approx(seconds)
        rates = {name: float(rate) for rate, name in re.findall(r"(\d+) as (\w+)", " ".join(step.said))}
        by_hand = 64 * 8192 / 16 / seconds / 1e12  # tokens per GPU and second
        assert rates["megatron"] == pytest.approx(by_hand * (matrices + scores / 2), abs=0.51)
        assert rates["nanotron"] == pytest.approx(by_hand * (matrices + scores), abs=0.51)


LINE = (
    " iteration {:8d}/  500000 | consumed samples: 2560 | elapsed time per iteration (ms): {:.1f} | "
    "throughput per GPU (TFLOP/s/GPU): 300.0 | global batch size:   256 | lm loss: 1.0E+01 |\n"
)


def logged(folder, text):
    """Return one's own step, of a log of Megatron-LM."""
    (folder / "a.sh").write_text(MEGATRON)
    (folder / "train.log").write_text(text)
    return own_step(*asked(f"config={folder / 'a.sh'} mine={folder / 'train.log'}"))


def test_a_log_is_ones_own_step_with_its_flops_counted_as_here(tmp_path):
    text = "".join(LINE.format(10 * n, s) for n, s in enumerate([90000, 4000, 4100, 4200], 1))
    step = logged(tmp_path, text)
    assert step.seconds == pytest.approx(4.1)
    matrices, scores = flops_per_token(4096)
    ours = 300 * (matrices + scores) / (matrices + scores / 2)
    said = " ".join(step.said)
    assert f"they are {ours:.0f}." in said
    assert f"{256 * 4096 / 32 / 4.1:,.0f} tokens/s per GPU" in said


TIMED = """(min, max) time across ranks (ms):
    forward-compute ................................: (1300.00, 1500.00)
    backward-compute ...............................: (2100.00, 2300.00)
    batch-generator ................................: (300.00, 400.00)
    embedding-grads-all-reduce .....................: (0.03, 0.04)
    all-grads-sync .................................: (180.00, 220.00)
    optimizer ......................................: (72.00, 73.00)
"""
BROKEN_DOWN = """[Rank 0] step={0}, skipped=0, lr=[0.0003], mom=[(0.9, 0.95)]
[Rank 0] epoch=0/micro_step={0}/global_step={0}, RunningAvgSamplesPerSec=16.0, CurrSamplesPerSec=16.0
[Rank 0] rank=0 time (ms) | fwd_microstep: 9.0 | bwd_microstep: 9.0 | step_microstep: 1.0
[Rank 0] time (ms) | fwd: 1000.0 | bwd: 2500.0 | bwd_inner: 2000.0 | bwd_allreduce: 500.0 | step: 100.0
"""


def test_timers_of_a_log_say_where_its_seconds_go(tmp_path):
    """Megatron's data are in its forward passes; what DeepSpeed's timers leave of a step is its loader's."""
    step = logged(tmp_path, "".join(LINE.format(10 * n, 4100) + TIMED for n in range(1, 6)))
    assert step.places_s == pytest.approx({
        "forward": 1.05, "backward": 2.2, "reduction": 0.2, "optimizer": 0.073, "data": 0.35, "spread": 0.3
    })  # fmt: skip
    found = read_log("".join(BROKEN_DOWN.format(n) for n in range(1, 6)), asked(MODEL)[1])
    assert timers_of_log(found, 4.0) == pytest.approx(
        {"forward": 1.0, "backward": 2.0, "reduction": 0.5, "optimizer": 0.1, "data": 0.4}
    )


def test_seconds_alone_come_with_the_measurement_that_would_decide():
    plain = {"computing": 1.8, "data": 0.0, "communication": 0.2}
    places = [{**plain, "communication": 1.2}, {**plain, "data": 1.0}]
    causes = tuple(
        StepCause(family=family, title=family, step_s=3.0, places_s=places_s)
        for family, places_s in zip(("network", "loader"), places, strict=True)
    )
    answer = made_up().with_(seconds=StepAnswer(places_s=plain, causes=causes))
    said = " ".join(" ".join(lines(OwnStep(3.0, ()), answer)).split())
    assert "The first two differ most in data: 1 s and 0 s." in said
    assert "differ most" not in " ".join(lines(OwnStep(3.0, (), places[1]), answer))


def test_a_full_allocator_is_no_cause_where_a_log_has_memory_to_spare():
    answer = made_up()
    causes = [StepCause(family=family, title=family, step_s=3.0) for family in ("allocator", "network")]
    for reserved_B, families in ((1.9, 2), (1.7, 1)):  # of a room of 2
        assert len(likely_causes(causes, OwnStep(3.0, (), {}, {}, reserved_B), answer)) == families


def test_a_files_layout_and_a_log_are_compared_with_other_layouts(tmp_path, capsys):
    file, log = tmp_path / "llama3_8b.toml", tmp_path / "train.log"
    file.write_text(TITAN)
    line = "step: {:2d}  loss: 10.0  memory: 40.1GiB(50.1%)  tps: {:,}  tflops: 347.0  mfu: 35.1%\n"
    log.write_text("".join(line.format(n, tps) for n, tps in [(1, 100), (2, 500), (3, 512), (4, 524)]))
    status, said, disk = advised(capsys, tmp_path, f"config={file} gpus=16 mine={log} write=torchtitan")
    assert status == DONE
    (layout,) = disk["layouts"]
    assert said[0].startswith("llama3_8b.toml: dp 8 × tp 2, ZeRO-3, full recompute, micro-batch 2 × 1: ")
    text = "\n".join(said)
    step_s = 2 * 8192 / 2 / 512  # a data-parallel rank's two sequences, on two devices
    assert f"Yours: {step_s:.3g} s, {step_s / disk['step_tuned_s']:.2f} times the prediction, above" in text
    first = next(line for line in said if line.startswith("1. "))
    gain = float(re.search(r"has ([\d.]+) times its tokens/s", text)[1])
    sequences = math.prod(map(int, re.search(r"dp (\d+).*micro-batch (\d+) × (\d+)", first).groups()))
    rate = sequences * 8192 / float(first.split()[-5]) / 16
    assert gain == pytest.approx(rate / layout["tokens_per_s_per_device"], rel=0.01)
    again = read_own_text(text[text.index("[model]") :].partition("\nThis file")[0], "torchtitan", ".toml")
    assert f"dp {again.dp_of()}" in first
    assert f"micro-batch {again.micro_batch_size} × {again.micro_batches()}" in first


ANSWERED = {
    "dp": 16, "tp": 2, "pp": 1, "cp": 1, "ep": 1, "etp": 1, "virtual_stages": 1, "zero": 1, "shard_size": 16,
    "micro_batch_size": 2, "micro_batches": 8, "recompute": 2, "sequence_parallel": 1,
}  # fmt: skip


@pytest.mark.parametrize(("format_", "zero"), [("megatron", 1), ("torchtitan", 3)])
def test_the_answer_is_written_as_a_file_that_says_it_again(tmp_path, format_, zero):
    (tmp_path / "a.sh").write_text(MEGATRON)
    _, question = asked(f"config={tmp_path / 'a.sh'}")
    layout = RankedLayout(title="", parts=ANSWERED, needed_B=1.0, room_B=2.0, fits=True)
    answer = Answer(verdict="fits", layouts=(layout,))
    text, *notes = "\n".join(written(answer, question, format_)).split("\nThis file ")
    again = read_own_text(text, format_, framework_named(format_).suffix)
    again = again.with_fields(FieldOrigin("command"), devices=32)
    found = (again.tp, again.pp, again.micro_batch_size, again.micro_batches(), again.dp_of())
    assert (found, again.recompute, again.zero) == ((2, 1, 2, 8, 16), "full", zero)
    assert any("cannot say all of the answer: zero 3 for 1" in note for note in notes) == (zero == 3)
    with pytest.raises(ConfigError, match="write=llm_foundry"):
        list(written(answer, question, "llm_foundry"))
