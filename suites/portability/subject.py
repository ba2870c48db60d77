"""What a variant of the portability suite is: an engine, and how a variant compiles the captured graph.

Shape suffixes: B batch, T tokens, N rows, D hidden size, H heads, K size of a head, F width of the
feed-forward layer, V vocabulary, E experts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from harness.records import Note, Reading
from suites.portability.workload import Workload

if TYPE_CHECKING:
    from torch import Tensor


class Compiled(NamedTuple):
    """What an engine made of a graph.

    `call` computes once, with inputs that are on the device already, and waits; None where the device is not
    here. `tensors` converts what it returns. `size_B`: of the program, None where it is not known.
    `readings`: further ones, read once compiling is over. `compile_method`: "cached" where the engine found
    its code on disk, "cold" where it could have. `call_with`: computes once with other inputs, of another
    length where the graph leaves that open.
    """

    call: Callable[[], Any] | None
    tensors: Callable[[Any], Sequence[Tensor]] = list
    size_B: int | None = None
    readings: Iterable[Reading | Note] = ()
    compile_method: str = ""
    call_with: Callable[[Sequence[Tensor]], Any] | None = None


def compiled_on(
    run: Callable[[Any], Any],
    place: Callable[[Sequence[Tensor]], Any],
    inputs: Sequence[Tensor],
    tensors: Callable[[Any], Sequence[Tensor]],
    size_B: int,
    method: str,
) -> Compiled:
    """Return what runs on inputs that `place` has put where the engine takes them from."""
    placed = place(inputs)
    return Compiled(lambda: run(placed), tensors, size_B, (), method, lambda others: run(place(others)))


@dataclass(frozen=True, slots=True)
class Engine:
    """One compiler with one target.

    - `compile(capture)`: takes a `graph.Capture`. It raises `Unavailable` where the engine is missing
      or another version, and whatever the compiler raises where it has no code for the graph.
    - `rewritten`: operators that are written differently for this engine, see `graph.py`.
    - `version`: of its package, as installed.
    - `takes_graph`: False where it replaces operators of the eager step.
    - `timed`: False where what runs here says nothing about speed.
    - `any_length`: True where it compiles a graph that leaves the sequence length open.
    """

    name: str
    compile: Callable[[Any], Compiled]
    target: str = "host"
    rewritten: tuple[str, ...] = ()
    version: str = ""
    takes_graph: bool = True
    timed: bool = True
    any_length: bool = False


@dataclass(frozen=True, slots=True)
class Subject:
    """One workload under one engine; None: eager PyTorch, which is the baseline."""

    workload: Workload
    seed: int
    engine: Engine | None = None
