"""What each framework prints per step, as readings in base units.

Sources of the formats: torchtitan v0.2.2 (components/metrics.py), Megatron-LM d98e8a6 (training/training.py,
training/utils/common_utils.py), transformers 5.23.0 (trainer_utils.py), deepspeed 0.19.8 (utils/timer.py,
runtime/pipe/engine.py), nanotron 2411b02 (trainer.py, logging/base.py), Composer 003ec03
(callbacks/speed_monitor.py, loggers/console_logger.py), MLPerf's logging (lines that begin with :::MLLOG).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from harness.config.own_files.logs.printed import ANSI, NUMBER, GiB, Readings, number, of_line
from harness.config.own_files.logs.trainer import hugging_face


def torchtitan(text: str) -> Iterator[Readings]:
    """Yield the readings of torchtitan's lines; tps is per device, memory is reserved."""
    pattern = re.compile(
        rf"(?<!validate )step:\s*(\d+).*?loss:\s*{NUMBER}.*?memory:\s*{NUMBER}GiB.*?(?:tps|wps):\s*{NUMBER}"
        rf"(?:.*?tflops:\s*{NUMBER})?(?:.*?mfu:\s*{NUMBER}%)?"
    )
    for line in ANSI.sub("", text).splitlines():
        found = pattern.search(line)
        if found:
            step, loss, memory, tps, tflops, mfu = found.groups()
            readings = {"step": float(step), "loss": number(loss), "memory_B": number(memory) * GiB,
                        "tokens_per_s": number(tps)}  # fmt: skip
            if tflops:
                readings["FLOP_per_s"] = number(tflops) * 1e12
            if mfu:
                readings["mfu"] = number(mfu) / 100
            yield readings


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
            yield {"step": float(found.group(1)), **of_line(line, fields)}
        kept = memory.search(line)
        if kept:
            yield {
                "allocated_B": number(kept.group(1)) * 2**20,
                "memory_B": number(kept.group(2)) * 2**20,
            }


def nemo(text: str) -> Iterator[Readings]:
    """Yield the readings of NeMo's progress lines."""
    fields = {
        "step_s": (rf"train_step_timing in s[=:]\s*{NUMBER}", 1.0),
        "step": (rf"global_step[=:]\s*{NUMBER}", 1.0),
        "loss": (rf"reduced_train_loss[=:]\s*{NUMBER}", 1.0),
    }
    for line in re.split(r"[\r\n]", text):
        if "train_step_timing" in line:
            yield of_line(line, fields)


def torchtune(text: str) -> Iterator[Readings]:
    """Yield the readings of torchtune's lines; memory is in GiB."""
    fields = {
        "step": (r"Step (\d+) \|", 1.0),
        "loss": (rf"\bloss:\s*{NUMBER}", 1.0),
        "tokens_per_s": (rf"tokens_per_second_per_gpu:\s*{NUMBER}", 1.0),
        "allocated_B": (rf"peak_memory_alloc:\s*{NUMBER}", float(GiB)),
        "memory_B": (rf"peak_memory_reserved:\s*{NUMBER}", float(GiB)),
    }
    for line in text.splitlines():
        if "tokens_per_second_per_gpu" in line:
            yield of_line(line, fields)


def deepspeed(text: str) -> Iterator[Readings]:
    """Yield the readings of DeepSpeed's throughput timer and of its pipeline engine."""
    fields = {
        "samples_per_s_all": (rf"[^g]SamplesPerSec={NUMBER}|samples/sec:\s*{NUMBER}", 1.0),
        "step_s": (rf"iter time \(s\):\s*{NUMBER}", 1.0),
        "allocated_B": (rf"MaxMemAllocated={NUMBER}GB", float(GiB)),
        "step": (rf"global_step={NUMBER}|steps:\s*{NUMBER}|\] \d+/(\d+), ", 1.0),
    }
    for line in text.splitlines():
        if "SamplesPerSec" in line or "iter time (s)" in line:
            yield of_line(line, fields)


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
        found = re.search(r"iteration: (\d+) / \d+ \|", line)
        if not found:
            continue
        readings = {"step": float(found.group(1))}
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


READERS: Mapping[str, tuple[str, Callable[[str], Iterator[Readings]]]] = {
    "mlperf": (r":::MLLOG", mlperf),
    "torchtitan": (r"step:\s*\d+.*memory:.*(?:tps|wps):", torchtitan),
    "megatron": (r"elapsed time per iteration \(ms\)", megatron),
    "nemo": (r"train_step_timing in s[=:]", nemo),
    "torchtune": (r"Step \d+ \|.*tokens_per_second_per_gpu:", torchtune),
    "nanotron": (r"time_per_iteration_ms:", nanotron),
    "llm_foundry": (r"throughput/(?:device/)?(?:tokens|batches)_per_sec", llm_foundry),
    "deepspeed": (r"SamplesPerSec=|iter time \(s\)", deepspeed),
    "hugging_face": (r"'train_runtime'|'grad_norm'|'loss':|\d+/\d+ \[[\d:]+<", hugging_face),
}
"""By framework: what only its log has, and its reader; the first that matches reads."""
