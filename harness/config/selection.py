"""Choose the workloads and variants of a run: all, a suite's quick selection, or those of the command."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from harness.config.validation import ConfigError, unknown

FULL, QUICK = "full", "quick"

KEYS = ("first", "workloads", "only")
"""Keys of a suite's `quick`: workloads that are reported before the others run, these others, variants."""


class Selection(NamedTuple):
    """Requested names, empty for all; `first` are reported before the others are run."""

    workloads: tuple[str, ...]
    only: tuple[str, ...]
    first: tuple[str, ...] = ()
    quick: bool = False


def select(name: str, config: Mapping[str, Any]) -> Selection:
    """Return what a composed config chooses of suite `name`; raises ConfigError."""
    selection, quick = config["selection"], config["suite"]["quick"]
    if selection not in (FULL, QUICK):
        raise unknown(f"selection={selection}", str(selection), [FULL, QUICK])
    file = next((key for key in ("workload_from", "trace") if config["suite"][key] is not None), "")
    if config["workloads"] and file:
        raise ConfigError(f"workloads: suite.{file} names the only workload; leave out one of the two")
    if selection == FULL:
        return Selection(tuple(config["workloads"]), tuple(config["only"]))
    if not quick:
        raise ConfigError(f"selection=quick: suite {name} has no quick selection; allowed: full")
    if file:
        raise ConfigError(f"selection=quick: suite.{file} names the only workload; allowed: full")
    for key in ("workloads", "only"):
        if config[key]:
            raise ConfigError(f"{key}: selection=quick chooses; leave out one of the two")
    check_quick(name, config["suite"])
    workloads = dict.fromkeys([*quick.get("first", []), *quick.get("workloads", [])])
    return Selection(
        tuple(workloads), tuple(quick.get("only", [])), tuple(quick.get("first", [])), quick=True
    )


def check_quick(name: str, suite: Mapping[str, Any]) -> None:
    """Refuse names that a suite's quick selection has and the suite has not; raises ConfigError."""
    for key, chosen in suite["quick"].items():
        where = f"suite.quick.{key}"
        if key not in KEYS:
            raise unknown(where, key, KEYS)
        if not isinstance(chosen, list) or not chosen:
            raise ConfigError(f"{where}: expected a list of names, such as [a,b]")
        for one in chosen if key != "only" else ():  # those of variants are looked up with the others
            if one not in suite["workloads"]:
                raise unknown(f"{where}=[{one}]", one, suite["workloads"])
    if suite["quick"] and not {"first", "workloads"} & suite["quick"].keys():
        raise ConfigError(f"suite.quick: expected workloads: the ones that suite {name} runs quickly")


def left_out(
    name: str,
    selection: Selection,
    workloads: Sequence[str],
    variants: Sequence[str],
    taken: Collection[str],
    out: str,
) -> tuple[str, ...]:
    """Return in sentences what a quick selection leaves out and the command that runs it; none of a full one.

    `workloads`, `variants`: all that there are; `taken`: those that are run, of both.
    """
    if not selection.quick:
        return ()
    lines = []
    for noun, every in (("workloads", workloads), ("variants", variants)):
        missing = [one for one in every if one not in taken]
        if missing:
            lines.append(
                f"selection=quick leaves out {len(missing)} of {len(every)} {noun}: {', '.join(missing)}"
            )
    where = f" out={out}" if out else ""
    return (*lines, f"the rest: python -m harness suite={name}{where}") if lines else ()
