"""What `harness.advise` was asked: words of the command to a run of suite layouts."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from harness.commands.advise.mine import own_step
from harness.commands.fit.layouts import PASSED_ON, parts_of, shown
from harness.commands.fit.question import (
    DEFAULT_DEVICE,
    hardware_words,
    loaded,
    model_name,
    question_id,
    quoted,
)
from harness.commands.grammar import CommandWords, RequestedDevice, device_of, read
from harness.config.validation import ConfigError

if TYPE_CHECKING:
    from harness.config.own_files.setup import OwnSetup
    from harness.config.run import Run

OWN = ("model", "gpus", "device", "link", "layout", "tokens_per_batch", "mine", "price", "out")
OF_FILES = ("config", "write")
KEYS = (*OWN, *PASSED_ON, *OF_FILES)

COUNTS = {"k": 1e3, "M": 1e6, "B": 1e9}
COUNT = re.compile(r"(\d+(?:\.\d+)?)\s*([kMB]?)")
RATE = re.compile(r"(\d+(?:\.\d+)?)\s*(gbit|gbit/s|gbps|tbit|tbit/s|gb/s|gbyte/s)(/node)?", re.IGNORECASE)

NETWORKS = ("infiniband", "efa")

NEARLY = 0.05
"""How far a power of two may be from a number of sequences that was given with k, M or B, to be meant."""

LINKS_IN_USE_B_PER_S = (1e8, 2e11)
"""Rates per GPU of networks that anybody has: 0.8 Gbit/s to 1.6 Tbit/s."""


class AdviseQuestion(NamedTuple):
    """What is asked, checked; `run` has one cell."""

    run: Run
    model: str  # the file, without its folder
    device: RequestedDevice
    gpus: int
    link: str  # in words
    search: bool
    mine_s: float | None  # seconds of the user's own step
    mine_said: tuple[str, ...]  # what their log says, in lines
    price: float | None  # dollars per GPU and hour

    @property
    def workload(self) -> Mapping[str, object]:
        """Return the fields of the cell's workload."""
        (fields,) = self.run.workloads.values()
        return fields


def question_of(argv: Sequence[str], setup: OwnSetup | None = None) -> AdviseQuestion:
    """Return what the words ask; `setup`: of the framework's file that gave them. Raises ConfigError."""
    words = read(argv, KEYS)
    if words.paths:
        raise ConfigError(f"{words.paths[0]}: expected KEY=VALUE; keys: {', '.join(KEYS)}")
    given = words.values
    if "model" not in given:
        raise ConfigError(
            "model: missing; give model=PATH, a Hugging Face config.json or its folder; or config=FILE"
        )
    if "gpus" not in given:
        raise ConfigError("gpus: missing; give the number of GPUs, as gpus=128")
    gpus = words.whole("gpus", 1)
    device = device_of(words.text("device", DEFAULT_DEVICE))
    if not device.option:
        text = given["device"]
        raise ConfigError(f"device={text}: seconds need a GPU's rates; give a name of conf/hardware")
    link_B_per_s, network, link = link_of(words)
    parts = parts_of(words, gpus) if given.get("layout", "search") != "search" else None
    fields: dict[str, object] = {
        "gpus": gpus,
        "seconds": True,
        "search": parts is None,
        "device": device.option,
        "network_B_per_s": link_B_per_s,
        "network": network,
        **(parts or {}),
    }
    fields |= {key: given[key] for key in PASSED_ON if key in given}
    if fields.get("program") == "torchtitan":
        fields.setdefault("zero", 3)
    run = loaded_with(device, given["model"], fields)
    if "tokens_per_batch" in given:
        sequences = sequences_of(words, run)
        run = loaded_with(device, given["model"], {**fields, "global_batch_size": sequences})
    out = Path(given.get("out", "results/advise"))
    run = replace(run, out=out / question_id(run, ()))
    if "mine" in given and parts is None:
        raise ConfigError("mine: needs the layout of your run, as layout=tp:8,pp:4, or config=FILE")
    (workload,) = run.workloads.values()
    mine = own_step(words, workload, setup) if "mine" in given else None
    return AdviseQuestion(
        run=run,
        model=model_name(given["model"]),
        device=device,
        gpus=gpus,
        link=link,
        search=parts is None,
        mine_s=mine.seconds if mine else None,
        mine_said=mine.said if mine else (),
        price=words.number("price") if "price" in given else None,
    )


def loaded_with(device: RequestedDevice, model: str, fields: Mapping[str, object]) -> Run:
    """Return the run of a cell with these fields; raises ConfigError."""
    words = [f"suite.hf_defaults.{key}={shown(value)}" for key, value in fields.items()]
    return loaded(["suite=layouts", *hardware_words(device), f"suite.workload_from={quoted(model)}", *words])


def sequences_of(words: CommandWords, run: Run) -> int:
    """Return how many sequences have `tokens_per_batch` tokens; raises ConfigError."""
    typed = words.typed["tokens_per_batch"]
    if "global_batch_size" in words:
        raise ConfigError(f"{typed}: global_batch_size is given, too; give one of the two")
    match = COUNT.fullmatch(words.values["tokens_per_batch"])
    if match is None:
        raise ConfigError(f"{typed}: expected a number of tokens, as 4M, 512k or 4194304")
    (fields,) = run.workloads.values()
    seq_len = int(fields["seq_len"])
    sequences = float(match[1]) * COUNTS.get(match[2], 1.0) / seq_len
    if match[2] and sequences >= 1:  # 4M stands for 4,194,304 tokens as often as for 4,000,000
        power = 2.0 ** round_log2(sequences)
        sequences = power if abs(power / sequences - 1) < NEARLY else round(sequences)
    if sequences < 1 or sequences != int(sequences):
        raise ConfigError(f"{typed}: no whole number of sequences of seq_len={seq_len} tokens")
    return int(sequences)


def round_log2(value: float) -> int:
    """Return the logarithm to base 2, rounded."""
    from math import log2

    return round(log2(value))


def link_of(words: CommandWords) -> tuple[float, str, str]:
    """Return a GPU's share of the network in B/s, its kind, and both in words; raises ConfigError.

    `400gbit` is a port of each GPU, `3.2tbit/node` that of a node; `,efa` names AWS's network.
    """
    text = words.text("link", "400gbit")
    rate, _, kind = text.partition(",")
    network = kind or "infiniband"
    if network not in NETWORKS:
        raise ConfigError(f"link={text}: expected {' or '.join(NETWORKS)} after the comma")
    match = RATE.fullmatch(rate.strip())
    if match is None:
        raise ConfigError(
            f"link={text}: expected a rate per GPU as 400gbit, or of a node as 3200gbit/node; ,efa after it "
            "is AWS's network"
        )
    value, unit = float(match[1]), match[2].lower()
    if unit in ("gb/s", "gbyte/s"):
        raise ConfigError(
            f"link={text}: did you mean {match[1]}gbit or {value * 8:g}gbit? Give the rate in bits"
        )
    bits = value * (1e12 if unit.startswith("t") else 1e9)
    if match[3]:
        bits /= words.whole("gpus_per_node", 8)
    low, high = LINKS_IN_USE_B_PER_S
    if not low <= bits / 8 <= high:
        raise ConfigError(
            f"link={text}: {bits / 1e9:g} Gbit/s per GPU; expected {low * 8 / 1e9:g} to {high * 8 / 1e9:g}"
        )
    words_of = f"{bits / 1e9:g} Gbit/s per GPU" + (", EFA" if network == "efa" else "")
    return bits / 8, network, words_of
