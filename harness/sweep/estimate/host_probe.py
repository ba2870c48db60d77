"""Before a sweep: how fast this host multiplies matrices, and what that means for cells in bf16.

The measuring and the suite are in a child process (`harness.sweep.estimate.survey`), for the parent never
imports torch.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from harness.config.code_fingerprint import ROOT
from harness.config.variants.optimizations import CONF, read_yaml
from harness.records import SET_UP_SAMPLES, Cell, Group, Limits
from harness.sweep.environment import Environment
from harness.sweep.estimate.survey import has_own_model
from harness.sweep.skip_rules import NOT_TRIED

logger = logging.getLogger(__name__)

TIMEOUT_S = 120.0
"""Importing torch takes seconds, on a busy machine many; the measuring itself a tenth of one."""

MORE_SAMPLES = SET_UP_SAMPLES + 2
"""Calls of an interleaved cell besides its rounds: to set it up, to calibrate, and to warm up."""

STEP_SHARE = 0.5
"""Share of matrix products' rate that a training step reaches, 0.5 to 0.7 in results/reference/kernels."""

SLOW_BF16 = "bf16"
"""What a note on slow bf16 products begins with, before a colon; reports find the note by it."""


MOST_SLOW_S = 60.0
"""Cells timed together are not tried where slow bf16 products alone would take longer than this."""


class HostProbe(NamedTuple):
    """Rates of matrix products of one thread by dtype, and the FLOP of bf16 products by cell where slow."""

    matmul_FLOP_per_s: Mapping[str, float]
    bf16_is_slow: bool = False
    bf16_FLOP: Mapping[str, float] = {}
    own_FLOP: float = 0.0  # of one sample of a user's own model
    too_large: str = ""  # why that does not fit into this machine

    @property
    def slower(self) -> float:
        """Return how many times slower bf16 products are than fp32's."""
        return self.matmul_FLOP_per_s["fp32"] / self.matmul_FLOP_per_s["bf16"]

    @property
    def sentence(self) -> str:
        """Return the message about this CPU; empty where bf16 is not slow."""
        if not self.bf16_is_slow:
            return ""
        return (
            f"{SLOW_BF16}: matrix products run {self.slower:.0f} times slower than in fp32 on this CPU; "
            "bf16 rows measure that, not a GPU's gain"
        )


def has_bf16_products(suite: str) -> bool:
    """Return whether a suite reports which of its cells compute bf16 products."""
    return bool(read_yaml(CONF / "suite" / f"{suite}.yaml").get("bf16_products"))


def probe(groups: Sequence[Group], folder: Path, environment: Environment) -> HostProbe | None:
    """Return what this host is: what `keep` kept in the results folder, else measured now.

    None where products run on a GPU or on a cluster's nodes, the suite has none in bf16, or the child failed
    (a warning says why).
    Where bf16 is slow, the suite's FLOP counts are read each time.
    """
    if (
        environment.gpus
        or environment.elsewhere
        or not groups
        or not has_bf16_products(groups[0].cells[0].suite)
    ):
        return None
    known = kept(folder, environment)
    own = any(has_own_model(cell) for group in groups for cell in group.cells)
    if known is not None and not known.bf16_is_slow and not own:
        return known
    measured = _measured(groups[0]._replace(cells=tuple(_one_per_variant(groups))))
    if measured is None:
        return None
    return measured._replace(bf16_FLOP=_for_every_repeat(groups, measured.bf16_FLOP))


def kept(folder: Path, environment: Environment) -> HostProbe | None:
    """Return the rates that an earlier sweep measured on this host; None where there are none."""
    try:
        return HostProbe(**json.loads(file_of(folder, environment).read_text()))
    except (OSError, ValueError, TypeError):
        return None


def keep(host: HostProbe | None, folder: Path, environment: Environment) -> None:
    """Keep the rates in the results folder, so that the next sweep need not measure them."""
    if host is not None and kept(folder, environment) is None:
        rates = host._replace(bf16_FLOP={}, own_FLOP=0.0, too_large="")._asdict()
        file_of(folder, environment).write_text(json.dumps(rates) + "\n")


def file_of(folder: Path, environment: Environment) -> Path:
    """Return where a host's rates are kept."""
    return folder / f"host-probe-{environment.host}.json"


def product_seconds(
    groups: Sequence[Group], host: HostProbe, cores: int, per_turn: bool = False
) -> dict[str, float]:
    """Return how long each cell's bf16 products take at least, with every core at the probe's rate.

    `per_turn`: seconds of the longest turn of an interleaved cell, since the limit applies to a turn.
    """
    seconds = {}
    for group in groups:
        samples = 1
        if group.sampling is not None:
            samples = SET_UP_SAMPLES if per_turn else group.sampling.rounds + MORE_SAMPLES
        for cell in group.cells:
            if flop := host.bf16_FLOP.get(cell.id):
                seconds[cell.id] = samples * flop / (host.matmul_FLOP_per_s["bf16"] * cores)
    return seconds


def own_model_seconds(groups: Sequence[Group], host: HostProbe, cores: int) -> dict[str, float]:
    """Return about how long the steps of each cell of a user's own model take, by the probe's fp32 rate."""
    return {
        cell.id: (group.sampling.rounds + MORE_SAMPLES)
        * host.own_FLOP
        / (STEP_SHARE * host.matmul_FLOP_per_s["fp32"] * cores)
        for group in groups
        if group.sampling is not None and host.own_FLOP
        for cell in group.cells
    }


def too_slow(seconds: Mapping[str, float], host: HostProbe, limits: Limits) -> dict[str, str]:
    """Return the cells whose bf16 products would take longer than their limit, with the reason."""
    rate = host.matmul_FLOP_per_s["bf16"] / 1e9
    return {
        cell: f"{NOT_TRIED}: bf16 products run at {rate:.2g} GFLOP/s per thread of this CPU, and the cell's "
        f"would take {took_s:.0f} s, more than limits.timeout_s={limits.timeout_s:g}"
        for cell, took_s in seconds.items()
        if took_s > limits.timeout_s
    }


def too_slow_to_pay(
    groups: Sequence[Group], host: HostProbe, cores: int, most_s: float = MOST_SLOW_S
) -> dict[str, str]:
    """Return the interleaved cells whose slow bf16 products would take minutes, with the reason.

    Only where the baseline computes none: there such a cell cannot be faster.
    """
    timed = [group for group in groups if group.sampling and group.cells[0].id not in host.bf16_FLOP]
    rate = f"{host.matmul_FLOP_per_s['bf16'] / 1e9:.2g} GFLOP/s per thread of this CPU"
    return {
        cell: f"{NOT_TRIED}: bf16 products run at {rate}, {host.slower:.0f} times slower than in fp32, "
        f"so bf16 cannot pay; timing the cell would take {took_s:.0f} s"
        for cell, took_s in product_seconds(timed, host, cores).items()
        if took_s > most_s
    }


def _measured(group: Group) -> HostProbe | None:
    """Return what the child found; None where it failed."""
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    try:
        done = subprocess.run(
            [sys.executable, "-m", "harness.sweep.estimate.survey"],
            input=json.dumps(group), capture_output=True, text=True, timeout=TIMEOUT_S,
            env={**os.environ, "PYTHONPATH": path}, check=False,
        )  # fmt: skip
        return HostProbe(**json.loads(done.stdout.strip().rpartition("\n")[2]))
    except subprocess.TimeoutExpired:
        logger.warning("the host probe took longer than %g s; continuing without it", TIMEOUT_S)
    except (ValueError, TypeError):
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        logger.warning("the host probe failed, continuing without it: %s", last)
    return None


def _one_per_variant(groups: Sequence[Group]) -> list[Cell]:
    """Return the first repeat of each cell: its others are alike."""
    return list({_alike(cell): cell for group in reversed(groups) for cell in group.cells}.values())


def _for_every_repeat(groups: Sequence[Group], flop: Mapping[str, float]) -> dict[str, float]:
    cells = [cell for group in groups for cell in group.cells]
    of = {_alike(cell): flop[cell.id] for cell in cells if cell.id in flop}
    return {cell.id: of[_alike(cell)] for cell in cells if _alike(cell) in of}


def _alike(cell: Cell) -> tuple[str, str]:
    return cell.workload, cell.optimization
