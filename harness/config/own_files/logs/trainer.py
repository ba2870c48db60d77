"""The log of Hugging Face's Trainer: dictionaries and a progress bar (transformers, trainer_utils.py)."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator

from harness.config.own_files.logs.printed import GiB, Readings

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
            yield {"step": float(found.group(2)), "bar_step_s": step_s}


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
