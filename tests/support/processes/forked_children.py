"""Children of sweeps forked from one process that has imported the memory suite: imports take five seconds.

A sweep of one cell starts its child by itself, since nothing else would use what has been imported.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from harness.sweep.executors.child import child_environ
from harness.sweep.executors.local import GPUS, LocalExecutor
from harness.sweep.executors.template import START_S, Template

ROOM = 200
"""Characters of a path that is no shorter than those of the children's temporary files."""


@contextmanager
def forked_children(folder: Path) -> Iterator[None]:
    """Let the children of the memory suite be forked; on a host with a GPU, CUDA cannot be used in a fork."""
    if any(map(os.path.exists, GPUS)):
        yield
        return
    long = folder / ("x" * (ROOM - len(str(folder))))
    template = Template("suites.memory", long, child_environ(long, 1), START_S)
    own = LocalExecutor._template

    def ours(executor, group, limits, alone, several):
        is_memory = f"{group.package}.{group.cells[0].suite}" == "suites.memory"
        if is_memory and executor.forks(group) and template.is_ready(wait=True):
            return template
        return own(executor, group, limits, alone, several)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LocalExecutor, "_template", ours)
        try:
            yield
        finally:
            template.close()
