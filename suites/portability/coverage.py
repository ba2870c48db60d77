"""How much of a captured graph an engine covers: all of it, or the operators that it compiles alone."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from functools import lru_cache

from torch import fx

from harness.instruments.kept_code import kept_code
from harness.records import Note, Origin, Reading
from suites.portability.capture.graph import Capture, flops_of, name_of, single
from suites.portability.session import Session, message_of
from suites.portability.subject import Engine

BUDGET_S = 30.0
"""Seconds after which no further operator is tried, since an engine may take seconds for each."""


def coverage(session: Session) -> Iterator[Reading | Note]:
    """Yield the shares of the graph's operators, and of its products' FLOP, that the engine has code for.

    Where the full graph compiled, both are 1. Else every kind of operator is compiled alone, once for each
    combination of types, in the first process of a sweep.
    """
    engine, nodes = session.subject.engine, session.capture.nodes
    if engine is not None and not engine.takes_graph:
        return
    if session.any_length and session.compiled is None:
        return  # operators of open sizes are not tried alone
    if engine is None or session.compiled is not None:
        yield Reading("coverage", "1", 1.0, Origin.MEASURED, "operators")
        yield Reading("coverage", "1", 1.0, Origin.MEASURED, "flops")
        return
    alone = operators_alone(session.capture)
    kinds = dict(alone.values())
    found = kept_code(
        lambda: _tried(engine, kinds), "coverage", engine.name, engine.target, session.capture.key
    )
    done, faults = json.loads(found.code)
    if done < len(kinds):
        yield Note(
            f"coverage: not known; {done} of {len(kinds)} kinds of operators were tried in {BUDGET_S:.0f} s"
        )
        return
    covered = [node for node, (key, _) in alone.items() if key not in faults]
    flops = sum(map(flops_of, nodes))
    yield Reading("coverage", "1", len(covered) / len(nodes), Origin.MEASURED, "operators")
    if flops:
        yield Reading("coverage", "1", sum(map(flops_of, covered)) / flops, Origin.MEASURED, "flops")
    names = sorted({name_of(node) for node, (key, _) in alone.items() if key in faults})
    yield Note(f"operators without code: {', '.join(names) or 'none alone; the graph fails as a whole'}")


def _tried(engine: Engine, kinds: Mapping[str, Capture]) -> bytes:
    """Return as JSON how many kinds of operators were tried, and the keys of those without code."""
    faults: list[str] = []
    begin_s = time.monotonic()
    for done, (key, capture) in enumerate(kinds.items()):
        if time.monotonic() - begin_s > BUDGET_S:
            return json.dumps([done, faults]).encode()
        if fault_of(engine, capture) is not None:
            faults.append(key)
    return json.dumps([len(kinds), faults]).encode()


@lru_cache(maxsize=2)
def operators_alone(capture: Capture) -> Mapping[fx.Node, tuple[str, Capture]]:
    """Return each operator as a graph of its own with a key of its kind, for all engines of one graph."""
    return {node: single(node) for node in capture.nodes}


def fault_of(engine: Engine, capture: object) -> str | None:
    """Return why an engine does not compile one operator; None where it does."""
    try:
        engine.compile(capture)
    except Exception as error:  # each compiler raises its own kinds
        return message_of(error)
    return None
