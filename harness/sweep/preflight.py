"""Before a sweep, in child processes, for the parent never imports torch or a suite.

One measures how fast this host multiplies matrices. Where bf16 products are slow, cells that have any run on
smaller workloads, next to a baseline, so that every ratio is one of equal shapes; those that would still take
too long are not tried. Another builds each cell of a suite that computes nothing, and so refuses what no
declaration can.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from harness.config.optimizations import BASELINE, BASELINES, CONF, code_below, read_yaml
from harness.config.protocols import SuiteCode, apply, optimization_module
from harness.config.run import Run
from harness.config.validation import ConfigError
from harness.records import SET_UP_SAMPLES, Cell, Group, Limits, Unavailable
from harness.sweep.environment import Environment
from harness.sweep.in_child import ChildError, in_child
from harness.sweep.runner import NOT_TRIED
from harness.units import counted

logger = logging.getLogger(__name__)

TIMEOUT_S = 120.0
"""Importing torch takes seconds, on a busy machine many; the measuring itself a tenth of one."""

MORE_SAMPLES = SET_UP_SAMPLES + 2
"""Calls of an interleaved cell besides its rounds: to set it up, to calibrate, and to warm up."""

SLOW_BF16 = "bf16"
"""What a note on slow bf16 products begins with, before a colon; reports find the note by it."""

MOST_SLOW_S = 60.0
"""Cells timed together are not tried where slow bf16 products alone would take longer than this, unless the
baseline has some, too: next to one that has none they cannot be faster."""

HOOK = "bf16_FLOP"
"""A suite's function that returns the FLOP of the bf16 matrix products that a subject computes on this CPU:
per sample where variants are interleaved, else in all."""

TOO_LARGE = "too_large"
"""A suite's function that returns why a user's own model does not fit into this machine's memory, and what
would; "" where it does."""


class HostProbe(NamedTuple):
    """Rates of matrix products of one thread by dtype, and the FLOP of bf16 products by cell where slow."""

    matmul_FLOP_per_s: Mapping[str, float]
    bf16_is_slow: bool = False
    bf16_FLOP: Mapping[str, float] = {}
    too_large: str = ""  # why a user's own model does not fit into this machine

    @property
    def slower(self) -> float:
        """Return how many times slower bf16 products are than fp32's."""
        return self.matmul_FLOP_per_s["fp32"] / self.matmul_FLOP_per_s["bf16"]

    @property
    def sentence(self) -> str:
        """Return the message about this CPU; empty where no cell has slow bf16 products."""
        if not self.bf16_FLOP:
            return ""
        return (
            f"{SLOW_BF16}: matrix products run {self.slower:.0f} times slower than in fp32 on this CPU; "
            "bf16 rows measure that, not a GPU's gain"
        )


def probe(groups: Sequence[Group], folder: Path, environment: Environment) -> HostProbe | None:
    """Return what this host is: what `keep` kept in the results folder, else measured now.

    None where products run on a GPU or on a cluster's nodes, the suite has none in bf16, or the child failed
    (a warning says why). Where bf16 is slow, the suite's FLOP counts are read each time.
    """
    if environment.gpus or environment.elsewhere or not groups or not _has_bf16_products(groups[0]):
        return None
    known = _kept(folder, environment)
    own = any(_has_own_model(cell) for group in groups for cell in group.cells)
    if known is not None and not known.bf16_is_slow and not own:
        return known
    first = {_alike(cell): cell for group in reversed(groups) for cell in group.cells}
    try:
        asked = groups[0]._replace(cells=tuple(first.values()))
        found = HostProbe(**in_child(__name__, survey.__name__, asked, TIMEOUT_S))
    except ChildError as error:
        logger.warning("the host probe failed, continuing without it: %s", error)
        return None
    flop = {_alike(cell): found.bf16_FLOP[cell.id] for cell in first.values() if cell.id in found.bf16_FLOP}
    every = {cell.id: flop[_alike(cell)] for group in groups for cell in group.cells if _alike(cell) in flop}
    return found._replace(bf16_FLOP=every)


def keep(host: HostProbe | None, folder: Path, environment: Environment) -> None:
    """Keep the rates in the results folder, so that the next sweep need not measure them."""
    if host is not None and _kept(folder, environment) is None:
        rates = host._replace(bf16_FLOP={}, too_large="")._asdict()
        _file_of(folder, environment).write_text(json.dumps(rates) + "\n")


def fit_to_host(
    run: Run, groups: Sequence[Group], host: HostProbe | None
) -> tuple[list[Group], tuple[str, ...]]:
    """Return the plan for this host, and in a sentence which cells run on smaller workloads, if any do.

    `slow_bf16_workloads` of a suite's YAML lists for each smaller workload those that it replaces. Groups of
    which only baselines would be left are not run.
    """
    flop = host.bf16_FLOP if host is not None else {}
    cells = [cell for group in groups for cell in group.cells]
    larger = {name for names in run.slow_bf16_workloads.values() for name in names}
    replaced = {cell.id for cell in cells if cell.id in flop and cell.workload in larger}
    compared = {cell.workload for cell in cells if cell.id in flop}

    def is_kept(cell: Cell) -> bool:
        if cell.workload not in run.slow_bf16_workloads:
            return cell.id not in replaced
        return cell.id in flop or (cell.module in BASELINES and cell.workload in compared)

    left = []
    for group in groups:
        kept = tuple(filter(is_kept, group.cells))
        if len(kept) == len(group.cells) or any(cell.module not in BASELINES for cell in kept):
            left.append(group._replace(cells=kept))
    names = ", ".join(name for name in run.slow_bf16_workloads if name in compared)
    said = f"slow bf16 leaves out {counted(len(replaced), 'cell')}, replaced by smaller workloads: {names}"
    return left, (said,) if replaced else ()


def too_slow(groups: Sequence[Group], host: HostProbe, cores: int, limits: Limits) -> dict[str, str]:
    """Return the cells whose bf16 products would take too long with every core at the probe's rate, and why.

    Longer than their limit, which of an interleaved cell is a turn's, or than `MOST_SLOW_S`.
    """
    rate = host.matmul_FLOP_per_s["bf16"]
    slow = f"{NOT_TRIED}: bf16 products run at {rate / 1e9:.2g} GFLOP/s per thread of this CPU"
    reasons = {}
    for group in groups:
        sampling = group.sampling
        for cell in group.cells:
            sample_s = host.bf16_FLOP.get(cell.id, 0.0) / (rate * cores)
            turn_s = sample_s * (SET_UP_SAMPLES if sampling else 1)
            all_s = sample_s * (sampling.rounds + MORE_SAMPLES if sampling else 1)
            if turn_s > limits.timeout_s:
                limit = f"limits.timeout_s={limits.timeout_s:g}"
                reasons[cell.id] = f"{slow}, and the cell's would take {turn_s:.0f} s, more than {limit}"
            elif sampling and group.cells[0].id not in host.bf16_FLOP and all_s > MOST_SLOW_S:
                reasons[cell.id] = (
                    f"{slow}, {host.slower:.0f} times slower than in fp32, so bf16 cannot pay; "
                    f"timing the cell would take {all_s:.0f} s"
                )
    return reasons


def survey(asked: Sequence[Any]) -> dict[str, Any]:
    """Return the fields of a `HostProbe`, for the cells of a group that is a list; runs in the child.

    It loads the suite and builds each cell's subject; it starts nothing.
    """
    from harness.instruments.memory import bf16_products

    group = Group(*asked)
    slow = bf16_products.bf16_is_slow()
    flop, too_large = dict[str, float](), ""
    for cell in (Cell(*fields) for fields in group.cells):
        code = code_below(group.package, cell.suite)
        with suppress(Exception):  # raised again when the cell is run, and recorded there
            suite: Any = import_module(code.module)
            if cell.optimization == BASELINE and _has_own_model(cell) and hasattr(suite, TOO_LARGE):
                too_large = too_large or suite.too_large(suite.build(cell.config["workload"], cell.seed))
            if slow and (found := bf16_FLOP(cell, code, suite)):
                flop[cell.id] = found
    return HostProbe(bf16_products.matmul_FLOP_per_s(), slow, flop, too_large)._asdict()


def bf16_FLOP(cell: Cell, code: SuiteCode, suite: Any) -> float:
    """Return the FLOP of one cell of a suite: built, its module and techniques applied."""
    subject = _built(suite, code, cell)
    if techniques := cell.config.get("techniques"):
        subject = suite.apply_techniques(subject, [tuple(one) for one in techniques])
    hook: Callable[[Any], float] = getattr(suite, HOOK)
    return float(hook(subject))


def _built(suite: Any, code: SuiteCode, cell: Cell) -> Any:
    subject = suite.build(cell.config["workload"], cell.seed)
    module = optimization_module(code, cell.module)
    return subject if module is None else apply(module, subject, cell.config["settings"])


def _has_bf16_products(group: Group) -> bool:
    """Return whether a suite reports which of its cells compute bf16 products."""
    return bool(read_yaml(CONF / "suite" / f"{group.cells[0].suite}.yaml").get("bf16_products"))


def _has_own_model(cell: Cell) -> bool:
    return cell.config["workload"].get("hf_config") is not None


def _kept(folder: Path, environment: Environment) -> HostProbe | None:
    """Return the rates that an earlier sweep measured on this host; None where there are none."""
    try:
        return HostProbe(**json.loads(_file_of(folder, environment).read_text()))
    except (OSError, ValueError, TypeError):
        return None


def _file_of(folder: Path, environment: Environment) -> Path:
    return folder / f"host-probe-{environment.host}.json"


def _alike(cell: Cell) -> tuple[str, str]:
    """Return what the repeats of a cell have in common."""
    return cell.workload, cell.optimization


BUILD_TIMEOUT_S = 60.0


def refuse_bad_inputs(groups: Sequence[Group]) -> None:
    """Raise ConfigError where a cell cannot be built: one line that names workload and variant.

    Also where building fails in another way, or takes longer than `BUILD_TIMEOUT_S`.
    """
    cells = [(group.package, cell) for group in groups for cell in group.cells if cell.repeat == 0]
    try:
        reason = in_child(__name__, first_fault.__name__, cells, BUILD_TIMEOUT_S)
    except ChildError as error:
        raise ConfigError(f"the suite cannot build its cells: {error}") from None
    if reason:
        raise ConfigError(reason)


def first_fault(cells: Iterable[tuple[str, Sequence[Any]]]) -> str:
    """Return the reason why the first cell that cannot be built cannot, "" where all can."""
    for package, fields in cells:
        cell = Cell(*fields)
        code = code_below(package, cell.suite)
        try:
            _built(import_module(code.module), code, cell)
        except Unavailable as fault:
            return f"{cell.workload}, {cell.optimization}: {fault}"
    return ""
