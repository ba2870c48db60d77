"""Keep values of unlike machines apart before anything is pooled: records -> those of one machine. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from harness.records import Record
from harness.units import counted


def of_one_machine(records: Sequence[Record]) -> tuple[list[Record], tuple[str, ...]]:
    """Return the records whose values may be pooled, and a sentence on each workload that had others.

    Machines are alike with the same hardware and library versions. Of each workload, the machine counts that
    has most of its records with values; of several, the first. Records without values stay: they say how a
    cell ended.
    """
    counts: dict[str, Counter[str]] = {}
    for record in records:
        if record.measurements:
            counts.setdefault(record.cell.workload, Counter())[record.machine] += 1
    chosen = {workload: of.most_common(1)[0][0] for workload, of in counts.items()}
    kept = [one for one in records if not one.measurements or one.machine == chosen[one.cell.workload]]
    sentences = tuple(
        f"{workload}: left out {counted(of.total() - of[chosen[workload]], 'cell')} of other machines or "
        "libraries, whose values are not pooled with these"
        for workload, of in counts.items()
        if len(of) > 1
    )
    return kept, sentences
