"""harness.advise: seconds printed and kept, one's own step and its causes, and the answer as a file."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
from own_texts import MEGATRON, TITAN
from scipy.stats import norm

from harness.answer import Answer, Interval, NearestStep, RankedLayout, StepAnswer, StepCause
from harness.ask import advise
from harness.ask.advise_lines import of_nearest
from harness.ask.mine import FAMILIES, OwnStep, likely_causes, lines, own_step
from harness.ask.words import ADVISE, step_question, words_of
from harness.ask.written import written
from harness.commands.entry import DONE, NO
from harness.commands.grammar import CommandWords, datasheet
from harness.config.code_fingerprint import ROOT
from harness.config.validation import ConfigError
from harness.frameworks.read import read_own_text
from harness.question import FieldOrigin, Question

MODEL = f"model={ROOT}/tests/data/configs/llama-3.1-8b.json gpus=16 seq_len=8192 global_batch_size=64"


def advised(
    capsys: pytest.CaptureFixture[str], folder: Path, words: str
) -> tuple[int, list[str], dict[str, Any]]:
    """Return the status, the lines and answer.json."""
    status = advise.main([*words.split(), f"out={folder / 'out'}"])
    latest = max((folder / "out").glob("*/answer.json"), key=lambda file: file.stat().st_mtime_ns)
    return status, capsys.readouterr().out.splitlines(), json.loads(latest.read_text())


def asked(words: str) -> tuple[CommandWords, Question]:
    read = words_of(words.split(), ADVISE)
    return read, step_question(read)


def test_what_is_printed_of_a_layout_is_what_is_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, said, disk = advised(capsys, tmp_path, f"{MODEL} layout=tp:2 rate=20/node show=all")
    (layout,) = disk["layouts"]
    step_s, low_s, high_s = (disk[name] for name in ("step_s", "step_low_s", "step_high_s"))
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
    assert disk["answer_seconds"] > 0
    assert "  seq_len=8192 (command: seq_len)" in said
    same = advised(capsys, tmp_path, f"{MODEL} layout=tp:2 price=2.5 show=all")[1]
    assert same == said


def test_layouts_come_by_speed_and_each_has_the_seconds_of_its_own_question(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, said, disk = advised(capsys, tmp_path, MODEL)
    assert status == DONE
    layouts = disk["layouts"]
    rates = [one["tokens_per_s_per_device"] / (1.05 if one["retries"] else 1) for one in layouts]
    assert rates == sorted(rates, reverse=True)
    assert disk["layouts_tried"] > disk["layouts_that_fit"] >= len(layouts) > 5
    assert [line.split("  ")[0] for line in said if re.match(r"\d\. ", line)] == [
        f"{rank}. {one['title']}" for rank, one in enumerate(layouts[:8], 1)
    ]
    for one in layouts[:2]:
        parts = one["parts"]
        names = ("dp", "tp", "pp", "cp", "virtual_stages", "zero")
        named = ",".join(f"{name}:{parts[name]}" for name in names)
        recompute = ("none", "selective", "full")[parts["recompute"]]
        words = f"{MODEL} layout={named} micro_batch_size={parts['micro_batch_size']} recompute={recompute}"
        assert advised(capsys, tmp_path, words)[2]["step_s"] == pytest.approx(one["step_s"][1])
    assert max(map(len, said)) <= 160


def test_no_layout_that_fits_is_a_no(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = f"model={ROOT}/tests/data/configs/deepseek-v3.json gpus=8 seq_len=4096"
    status, said, disk = advised(capsys, tmp_path, model)
    assert (status, disk["verdict"], disk["layouts"]) == (NO, "does not fit", [])
    assert said[0].startswith("no layout fits")
    status, said, disk = advised(capsys, tmp_path, f"{model} layout=ep:8")
    assert (status, disk["verdict"]) == (NO, "does not fit")
    assert said[0].startswith("does not fit: ")


# one's own step


def test_the_likeliest_cause_fits_and_is_common_before_one_looks() -> None:
    """Sizes of a family share its prior; the density is that of a normal logarithm, by scipy."""
    causes = [
        StepCause(family="network", title="twice", step_s=2.0),
        StepCause(family="network", title="four times", step_s=4.0),
        StepCause(family="power", title="half", step_s=3.0),
        StepCause(family="loader", title="waits", step_s=3.9),
    ]

    def likelihood(cause: StepCause, own_s: float, sigma: float) -> float:
        share = FAMILIES[cause.family].prior / sum(one.family == cause.family for one in causes)
        return math.log(share) + float(norm.logpdf(math.log(own_s), math.log(cause.step_s), sigma))

    for own_s, sigma in ((4.0, 0.1), (2.1, 0.3), (1000.0, 0.01)):
        found = likely_causes(causes, own_s, sigma)
        by_hand = sorted(causes, key=lambda one: -likelihood(one, own_s, sigma))
        first = {one.family: one for one in reversed(by_hand)}
        assert found == [one for one in by_hand if first[one.family] is one]
    assert [one.title for one in likely_causes(causes, 4.0, 0.1)] == ["four times", "waits", "half"]


def made_up(*causes: tuple[str, str, float]) -> Answer:
    """Return a step of 2 s at 400 TFLOP/s, with causes and a published step."""
    layout = RankedLayout(
        title="dp 8", parts={}, needed_B=1.0, room_B=2.0, fits=True, step_s=Interval(1.8, 2.0, 2.2),
        model_FLOP_per_s=400e12,
    )  # fmt: skip
    nearest = NearestStep(title="X on 8 GPUs", published_s=2.0, predicted_s=2.5, FLOP_per_device=1e15)
    named = tuple(StepCause(family=family, title=title, step_s=step_s) for family, title, step_s in causes)
    return Answer(verdict="fits", layouts=(layout,), seconds=StepAnswer(causes=named, nearest=(nearest,)))


def test_a_slower_step_is_explained_by_what_slows_and_a_faster_one_by_what_does_not() -> None:
    answer = made_up(
        ("network", "slow", 4.0), ("batch", "half", 1.0), ("power", "less", 2.6), ("loader", "all", 90.0)
    )
    slower = list(lines(OwnStep(4.0, ()), answer))
    assert slower[0].startswith("Yours: 4 s, 2.00 times the prediction, above the 90 % interval; 200 TFLOP/s")
    causes = [line for line in slower if re.match(r"  \w+: [\d.]+ s", line)]
    assert [line.split(":")[0].strip() for line in causes] == ["slow", "less", "all"]
    assert ["suffice" in line for line in causes] == [False, True, False]
    assert "more than yours" in causes[2]
    faster = [line for line in lines(OwnStep(1.0, ()), answer) if re.match(r"  \w+: [\d.]+ s", line)]
    assert [line.split(":")[0].strip() for line in faster] == ["half"]
    (inside,) = lines(OwnStep(2.1, ()), answer)
    assert "inside the 90 % interval" in inside
    assert answer.seconds is not None
    said = " ".join(of_nearest(answer.seconds))
    assert said == "Nearest published: X on 8 GPUs: 2 s, 500 TFLOP/s per GPU; predicted for it 2.5 s, 400."


@pytest.mark.parametrize(("mine", "seconds"), [("4.1s", 4.1), ("850ms", 0.85), ("2 min", 120.0)])
def test_ones_own_seconds_have_a_unit(mine: str, seconds: float) -> None:
    words, question = asked(f"{MODEL} layout=tp:2")
    given = CommandWords(words.paths, {**words.values, "mine": mine}, {**words.typed, "mine": f"mine={mine}"})
    own = own_step(given, question)
    assert own.seconds == pytest.approx(seconds)
    rates = {name: float(rate) for rate, name in re.findall(r"(\d+) as (\w+)", " ".join(own.said))}
    by_hand = 64 * 8192 / 16 / seconds / 1e12  # tokens per GPU and second
    matrices = 32 * (2 * 4096**2 + 2 * 4096 * 1024 + 3 * 4096 * 14336) + 128256 * 4096
    scores = 12 * 32 * 4096 * 8192
    assert rates["megatron"] == pytest.approx(by_hand * (6 * matrices + scores / 2), abs=0.51)
    assert rates["nanotron"] == pytest.approx(by_hand * (6 * matrices + scores), abs=0.51)


LINE = (
    " iteration {:8d}/  500000 | consumed samples: 2560 | elapsed time per iteration (ms): {:.1f} | "
    "throughput per GPU (TFLOP/s/GPU): 300.0 | global batch size:   256 | lm loss: 1.0E+01 |\n"
)


def test_a_log_is_ones_own_step_with_its_flops_counted_as_here(tmp_path: Path) -> None:
    path, log = tmp_path / "a.sh", tmp_path / "train.log"
    path.write_text(MEGATRON)
    log.write_text("".join(LINE.format(10 * n, s) for n, s in enumerate([90000, 4000, 4100, 4200], 1)))
    own = own_step(*asked(f"config={path} mine={log}"))
    assert own.seconds == pytest.approx(4.1)
    matrices = 32 * (4096 * 4096 * 2 + 2 * 4096 * 1024 + 3 * 4096 * 14336) + 128256 * 4096
    scores = 12 * 32 * 4096 * 4096
    ours = 300 * (6 * matrices + scores) / (6 * matrices + scores / 2)
    said = " ".join(own.said)
    assert f"they are {ours:.0f}." in said
    assert "the first 1 are left out" in said
    assert f"{256 * 4096 / 32 / 4.1:,.0f} tokens/s per GPU" in said


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "expected the seconds of your step"),
        ("", "it is empty"),
        ("CUDA out of memory", "give it as oom="),
        ("hello", "its first line is 'hello'"),
    ],
)
def test_what_is_no_log_is_one_line(tmp_path: Path, content: str | None, says: str) -> None:
    path, log = tmp_path / "a.sh", tmp_path / "train.log"
    path.write_text(MEGATRON)
    if content is not None:
        log.write_text(content)
    with pytest.raises(ConfigError, match=says) as raised:
        own_step(*asked(f"config={path} mine={log}"))
    assert str(raised.value).startswith("mine=")
    assert "\n" not in str(raised.value)


def test_a_files_layout_and_a_log_are_compared_with_other_layouts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, log = tmp_path / "llama3_8b.toml", tmp_path / "train.log"
    file.write_text(TITAN)
    line = "step: {:2d}  loss: 10.0  memory: 40.1GiB(50.1%)  tps: {:,}  tflops: 347.0  mfu: 35.1%\n"
    log.write_text("".join(line.format(n, tps) for n, tps in [(1, 100), (2, 500), (3, 512), (4, 524)]))
    status, said, disk = advised(capsys, tmp_path, f"config={file} gpus=16 mine={log} write=torchtitan")
    assert status == DONE
    (own,) = disk["layouts"]
    assert said[0].startswith("llama3_8b.toml: dp 8 × tp 2, ZeRO-3, full recompute, micro-batch 2 × 1: ")
    assert f"{disk['step_s']:.3g} s per step" in said[0]
    text = "\n".join(said)
    step_s = 2 * 8192 / 2 / 512  # a data-parallel rank's two sequences, on two devices
    for part in (
        f"train.log, torchtitan's: {step_s:.3g} s per step",
        f"Yours: {step_s:.3g} s, {step_s / disk['step_s']:.2f} times the prediction, above",
        "What would explain it, the likeliest first",
        "Nearest published: ",
    ):
        assert part in text
    first = next(line for line in said if line.startswith("1. "))
    gain = float(re.search(r"has ([\d.]+) times its tokens/s", text)[1])  # type: ignore[index]
    seconds = float(first.split()[-4])
    micro = re.search(r"dp (\d+).*micro-batch (\d+) × (\d+)", first)
    assert micro is not None
    sequences = math.prod(map(int, micro.groups()))
    assert gain == pytest.approx(sequences * 8192 / seconds / 16 / own["tokens_per_s_per_device"], rel=0.01)
    toml = text[text.index("[model]") :].partition("\nThis file")[0]
    again = read_own_text(toml, "torchtitan", ".toml")
    assert f"micro-batch {again.micro_batch_size} × {again.micro_batches()}" in first
    assert f"dp {again.dp_of()}" in first


ANSWERED = {
    "dp": 16, "tp": 2, "pp": 1, "cp": 1, "ep": 1, "etp": 1, "virtual_stages": 1, "zero": 1, "shard_size": 16,
    "micro_batch_size": 2, "micro_batches": 8, "recompute": 2, "sequence_parallel": 1,
}  # fmt: skip


def written_again(folder: Path, format_: str, suffix: str) -> tuple[Question, list[str]]:
    """Return an answered layout, written as a file and read again, and what the file cannot say."""
    path = folder / "a.sh"
    path.write_text(MEGATRON)
    _, question = asked(f"config={path}")
    layout = RankedLayout(title="", parts=ANSWERED, needed_B=1.0, room_B=2.0, fits=True)
    said = list(written(Answer(verdict="fits", layouts=(layout,)), question, format_))
    notes = [line for line in said if line.startswith("This file ")]
    return read_own_text("\n".join(said[: len(said) - len(notes)]), format_, suffix), notes


@pytest.mark.parametrize(
    ("format_", "suffix", "missing"),
    [("megatron", "", []), ("nanotron", ".yaml", []), ("torchtitan", ".toml", ["zero 3 for 1"])],
)
def test_the_answer_is_written_as_a_file_that_says_it_again(
    tmp_path: Path, format_: str, suffix: str, missing: list[str]
) -> None:
    again, notes = written_again(tmp_path, format_, suffix)
    assert (again.tp, again.pp, again.micro_batch_size, again.recompute) == (2, 1, 2, "full")
    again = again.with_fields(FieldOrigin("command"), devices=32)
    assert (again.micro_batches(), again.dp_of()) == (8, 16)
    assert again.zero == (3 if missing else 1)
    assert [note for note in notes if "cannot say" in note] == [
        f"This file cannot say all of the answer: {what}." for what in missing
    ]


def test_a_format_without_such_layouts_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="write=llm_foundry"):
        written_again(tmp_path, "llm_foundry", ".yaml")
