"""Logs of each framework: tests/data/logs.yaml has a line of each."""

from pathlib import Path

import pytest
import yaml
from refusals import refused

from harness.frameworks.logs import read_log
from harness.question import question_of

LOGS = yaml.safe_load((Path(__file__).parents[2] / "data" / "logs.yaml").read_text())


def text_of(name):
    """Return 40 steps of a log, the first five of which take twice as long."""
    log = LOGS[name]
    lines = [log.get("first", "noise")]
    for step in range(1, 41):
        slow = 2 if step <= 5 else 1
        start, samples = step * 64000, (step - 1) * 4096
        numbers = {"start": start, "stop": start + 64000, "samples": samples, "more": samples + 4096}
        numbers |= {"value": log.get("value", 0) * slow, "rate": log.get("rate", 0) / slow}
        lines.append(log["line"].format(step=step, **numbers))
    return "\n".join(lines)


@pytest.mark.parametrize("name", LOGS)
def test_each_log_gives_medians_of_its_steady_lines(name):
    log = read_log(text_of(name))
    assert log.framework == LOGS[name]["framework"]
    expected = LOGS[name]["expect"]
    assert {metric: log.value(metric) for metric in expected} == pytest.approx(expected)
    assert log.left_out == 10


def test_quartiles_show_how_steady_it_was_and_the_end_of_trainers_log_is_read():
    lines = text_of("megatron").splitlines()
    log = read_log("\n".join(line.replace("8500", str(8000 + at * 10)) for at, line in enumerate(lines)))
    step_s = log.metrics["step_s"]
    assert step_s.low < step_s.median < step_s.high
    assert step_s.lines == 30
    text = "{'train_runtime': 100.0, 'train_steps_per_second': 0.25, 'train_loss': 1.0, 'epoch': 1.0}"
    assert read_log(text).value("step_s") == 4.0


def test_seconds_follow_from_tokens_per_second_and_the_question_and_tokens_from_seconds():
    """8 sequences of 8,192 tokens per step on 8 devices at 8,192 tokens/s per device take a second."""
    question = question_of(format="torchtitan", dp=8, seq_len=8192, gradient_accumulation_steps=1)
    log = read_log(text_of("torchtitan").replace("6,000", "8,192"), question)
    assert log.value("step_s") == pytest.approx(1.0)
    question = question_of(format="megatron", dp=4, tp=8, global_batch_size=512, seq_len=4096)
    rate = read_log(text_of("megatron"), question).value("tokens_per_s")
    assert rate == pytest.approx(512 * 4096 / 8.5 / 32)


def test_no_log_is_one_line_that_says_what_it_is():
    for text, says in {"": "empty", "x\nCUDA out of memory.": "oom="}.items():
        refused(lambda text=text: read_log(text), says)
