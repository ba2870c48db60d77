"""What each framework prints per step, as readings in base units.

Sources of the formats: torchtitan v0.2.2 (components/metrics.py), Megatron-LM d98e8a6 (training/training.py,
training/utils/common_utils.py), transformers 5.23.0 (trainer_utils.py), deepspeed 0.19.8 (utils/timer.py,
runtime/pipe/engine.py), nanotron 2411b02 (trainer.py, logging/base.py), Composer 003ec03
(callbacks/speed_monitor.py, loggers/console_logger.py), MLPerf's logging (lines that begin with :::MLLOG).
"""

from __future__ import annotations

import ast
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

Readings = Mapping[str, float]
"""By metric: step_s, tokens_per_s and FLOP_per_s (per device), tokens_per_s_all, mfu, memory_B, ..."""

ANSI = re.compile(r"\x1b\[[0-9;]*m")
GiB = 2**30
NUMBER = r"([-+]?\d[\d,]*\.?\d*(?:[eE][-+]?\d+)?)"


def number(text: str) -> float:
    """Return a printed number, also with commas for thousands."""
    return float(text.replace(",", ""))


def of_lines(mark: str, fields: Mapping[str, tuple[str, float]], text: str) -> Iterator[Readings]:
    """Yield the readings of each line that has a mark."""
    for line in re.split(r"[\r\n]", ANSI.sub("", text)):
        if re.search(mark, line):
            yield of_line(line, fields)


def of_line(line: str, fields: Mapping[str, tuple[str, float]]) -> dict[str, float]:
    """Return what a line has of some fields, each a pattern with the scale of its number."""
    readings = {}
    for metric, (pattern, scale) in fields.items():
        found = re.search(pattern, line)
        if found:
            readings[metric] = number(next(one for one in found.groups() if one)) * scale
    return readings


def megatron(text: str) -> Iterator[Readings]:
    """Yield the readings of Megatron-LM's lines and Megatron Bridge's; their "MB" are 2^20 B.

    A terminal may have broken a line, so that its parts are joined.
    """
    fields = {
        "step_s": (rf"elapsed time per iteration \(ms\):\s*{NUMBER}", 1e-3),
        "FLOP_per_s": (
            rf"throughput per GPU \(TFLOP/s/GPU\):\s*{NUMBER}|TFLOPs:\s*{NUMBER}"
            rf"|GPU utilization:\s*{NUMBER}\s*(?:MODEL_)?TFLOP/s/GPU",
            1e12,
        ),
        "global_batch_size": (rf"global batch size:\s*{NUMBER}", 1.0),
        "loss": (rf"lm loss:\s*{NUMBER}", 1.0),
        "tokens_per_s_all": (rf"tokens-per-second[^|]*?:\s*{NUMBER}", 1.0),
    }
    memory = re.compile(rf"memory \(MB\) \|.*?max allocated:\s*{NUMBER}.*?max reserved:\s*{NUMBER}")
    for block in re.split(r"(?=\biteration\s+\d+/\s*\d+ \|)", text):
        line = " ".join(block.split())
        found = re.match(r"iteration (\d+)/ ?\d+ \|", line)
        if found and "elapsed time per iteration" in line:
            yield of_line(line, fields)
        kept = memory.search(line)
        if kept:
            yield {
                "allocated_B": number(kept.group(1)) * 2**20,
                "memory_B": number(kept.group(2)) * 2**20,
            }


def llm_foundry(text: str) -> Iterator[Readings]:
    """Yield the readings of Composer's console, a block per batch."""
    fields = {
        "tokens_per_s": (rf"throughput/device/tokens_per_sec:\s*{NUMBER}", 1.0),
        "tokens_per_s_all": (rf"throughput/tokens_per_sec:\s*{NUMBER}", 1.0),
        "FLOP_per_s": (rf"throughput/device/flops_per_sec:\s*{NUMBER}", 1.0),
        "mfu": (rf"throughput/device/mfu:\s*{NUMBER}", 1.0),
        "batches_per_s": (rf"throughput/batches_per_sec:\s*{NUMBER}", 1.0),
        "allocated_B": (rf"memory/peak_allocated_mem:\s*{NUMBER}", 1e9),
        "memory_B": (rf"memory/peak_reserved_mem:\s*{NUMBER}", 1e9),
        "loss": (rf"loss/train/total:\s*{NUMBER}", 1.0),
    }
    for block in re.split(r"\n(?=\s*\[(?:epoch|batch|token|sample)=)", text):
        readings = of_line(block, fields)
        if "tokens_per_s" in readings or "batches_per_s" in readings:
            if readings.get("batches_per_s"):
                readings["step_s"] = 1 / readings["batches_per_s"]
            yield readings


HUMAN = {"": 1.0, "K": 1e3, "M": 1e6, "B": 1e9, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}


def nanotron(text: str) -> Iterator[Readings]:
    """Yield the readings of nanotron's lines; numbers have three digits and K, M, B or G."""
    names = {
        "time_per_iteration_ms": ("step_s", 1e-3),
        "elapsed_time_per_iteration_ms": ("step_s", 1e-3),
        "tokens_per_sec_per_gpu": ("tokens_per_s", 1.0),
        "tokens_per_sec": ("tokens_per_s_all", 1.0),
        "model_tflops_per_gpu": ("FLOP_per_s", 1e12),
        "lm_loss": ("loss", 1.0),
        "cuda_max_memory_reserved": ("memory_B", 1.0),
    }
    for line in text.splitlines():
        if not re.search(r"iteration: \d+ / \d+ \|", line):
            continue
        readings = {}
        for key, value, unit in re.findall(r"([\w/]+): ([-\d.e]+)([KMBGTPE]?)(?= \||\s*$)", line):
            if key in names:
                metric, scale = names[key]
                readings[metric] = float(value) * HUMAN[unit] * scale
        yield readings


def mlperf(text: str) -> Iterator[Readings]:
    """Yield samples/s and seconds per step between MLPerf's block events."""
    batch, start, samples = 0.0, 0.0, 0.0
    for found in re.finditer(r":::MLLOG\s*(\{.*\})", text):
        try:
            event: dict[str, Any] = json.loads(found.group(1))
        except json.JSONDecodeError:
            continue
        key, value, meta = event.get("key"), event.get("value"), event.get("metadata") or {}
        if key == "global_batch_size" and isinstance(value, int | float):
            batch = float(value)
        if key == "tracked_stats" and isinstance(value, dict):
            if value.get("train_step_time"):
                yield {"step_s": float(value["train_step_time"])}
            if value.get("throughput"):
                yield {"samples_per_s_all": float(value["throughput"])}
        count = meta.get("samples_count", meta.get("epoch_num"))
        if key == "block_start" and isinstance(count, int | float):
            start, samples = float(event.get("time_ms", 0)), float(count)
        if key == "block_stop" and start and isinstance(count, int | float) and count > samples:
            seconds = (float(event.get("time_ms", 0)) - start) * 1e-3
            if seconds > 0:
                rate = (float(count) - samples) / seconds
                yield {"samples_per_s_all": rate} | ({"step_s": batch / rate} if batch else {})
            start = 0.0


BAR = re.compile(r"^(.*?)\s*\d+%\|[^|]*\|\s*(\d+)/(\d+) \[[\d:]+<[\d:?]+,\s*([\d.]+)(s/it|it/s)")
"""A progress bar of tqdm, with what it says before."""


def hugging_face(text: str) -> Iterator[Readings]:
    """Yield the readings of Trainer's dictionaries and of its progress bar.

    Other bars say what they are of, as "Loading checkpoint shards:", or have another length.
    """
    lines = re.split(r"[\r\n]", text)
    bars = [found for line in lines if (found := BAR.search(line)) and not _is_of_another(found.group(1))]
    lengths = Counter(found.group(3) for found in bars)
    for line in lines:
        for found in re.finditer(r"\{'[^{}]*\}", line):
            readings = _of_dictionary(found.group())
            if readings:
                yield readings
    for found in bars:
        value = float(found.group(4))
        if value and found.group(3) == lengths.most_common(1)[0][0]:
            step_s = value if found.group(5) == "s/it" else 1 / value
            yield {"bar_step_s": step_s}


def _is_of_another(before: str) -> bool:
    """Return whether what stands before a bar names what it counts; launchers name the stream or the rank."""
    return before.rstrip().endswith(":") and not re.search(r"(?:stdout|stderr|\]|\d):\s*$", before)


OF_TRAINER = {
    "train_steps_per_second": ("step_s", lambda x: 1 / x),
    "train_samples_per_second": ("samples_per_s_all", float),
    "train_tokens_per_second": ("tokens_per_s_all", float),
    "tokens_per_second_per_gpu": ("tokens_per_s", float),
    "tokens/train_per_sec_per_gpu": ("tokens_per_s", float),
    "memory/max_active (GiB)": ("allocated_B", lambda x: x * GiB),
    "memory/device_reserved (GiB)": ("memory_B", lambda x: x * GiB),
    "memory/max_mem_reserved(gib)": ("memory_B", lambda x: x * GiB),
    "memory/max_mem_allocated(gib)": ("allocated_B", lambda x: x * GiB),
    "loss": ("loss", float),
    "train_runtime": ("runtime_s", float),
}
"""Keys of Trainer's and axolotl's logs."""


def _of_dictionary(text: str) -> dict[str, float]:
    try:
        values = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return {}
    readings = {}
    for key, value in values.items():
        if key in OF_TRAINER and isinstance(value, int | float | str):
            metric, converted = OF_TRAINER[key]
            try:
                readings[metric] = float(converted(float(value)))  # type: ignore[no-untyped-call]
            except (ValueError, ZeroDivisionError):
                continue
    return readings


TORCHTITAN = partial(
    of_lines,
    r"(?<!validate )step:\s*\d+.*?memory:.*?(?:tps|wps):",
    {
        "loss": (rf"loss:\s*{NUMBER}", 1.0),
        "memory_B": (rf"memory:\s*{NUMBER}GiB", float(GiB)),  # reserved
        "tokens_per_s": (rf"(?:tps|wps):\s*{NUMBER}", 1.0),  # per device
        "FLOP_per_s": (rf"tflops:\s*{NUMBER}", 1e12),
        "mfu": (rf"mfu:\s*{NUMBER}%", 0.01),
    },
)

NEMO = partial(
    of_lines,
    "train_step_timing",
    {
        "step_s": (rf"train_step_timing in s[=:]\s*{NUMBER}", 1.0),
        "loss": (rf"reduced_train_loss[=:]\s*{NUMBER}", 1.0),
    },
)

TORCHTUNE = partial(
    of_lines,
    "tokens_per_second_per_gpu",
    {
        "loss": (rf"\bloss:\s*{NUMBER}", 1.0),
        "tokens_per_s": (rf"tokens_per_second_per_gpu:\s*{NUMBER}", 1.0),
        "allocated_B": (rf"peak_memory_alloc:\s*{NUMBER}", float(GiB)),
        "memory_B": (rf"peak_memory_reserved:\s*{NUMBER}", float(GiB)),
    },
)

DEEPSPEED = partial(
    of_lines,  # its throughput timer, and its pipeline engine
    r"SamplesPerSec|iter time \(s\)",
    {
        "samples_per_s_all": (rf"[^g]SamplesPerSec={NUMBER}|samples/sec:\s*{NUMBER}", 1.0),
        "step_s": (rf"iter time \(s\):\s*{NUMBER}", 1.0),
        "allocated_B": (rf"MaxMemAllocated={NUMBER}GB", float(GiB)),
    },
)

READERS: Mapping[str, tuple[str, Callable[[str], Iterator[Readings]]]] = {
    "mlperf": (r":::MLLOG", mlperf),
    "torchtitan": (r"step:\s*\d+.*memory:.*(?:tps|wps):", TORCHTITAN),
    "megatron": (r"elapsed time per iteration \(ms\)", megatron),
    "nemo": (r"train_step_timing in s[=:]", NEMO),
    "torchtune": (r"Step \d+ \|.*tokens_per_second_per_gpu:", TORCHTUNE),
    "nanotron": (r"time_per_iteration_ms:", nanotron),
    "llm_foundry": (r"throughput/(?:device/)?(?:tokens|batches)_per_sec", llm_foundry),
    "deepspeed": (r"SamplesPerSec=|iter time \(s\)", DEEPSPEED),
    "hugging_face": (r"'train_runtime'|'grad_norm'|'loss':|\d+/\d+ \[[\d:]+<", hugging_face),
}
"""By framework: what only its log has, and its reader; the first that matches reads."""
