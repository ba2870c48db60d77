"""Run each group of cells in a child process on this machine; the default executor."""

from __future__ import annotations

import logging
import math
import os
import selectors
import shutil
import time
from collections import Counter, deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from itertools import count, islice
from pathlib import Path

from harness.config.optimizations import code_of
from harness.records import Group, Limits
from harness.sweep.environment import Environment, describe
from harness.sweep.executors import CellEvent
from harness.sweep.executors.child import Child, child_environ, kill_by_tmpdir
from harness.sweep.executors.template import START_S, Template
from harness.sweep.store import StoreError

logger = logging.getLogger(__name__)

TEMPORARY = ".tmp"
GPUS = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")
"""Device files of GPUs: NVIDIA's, AMD's, and those under Windows."""
MOST_TEMPLATES = 3
"""Templates that one suite gets in a sweep; after that its children are started by themselves."""


class LocalExecutor:
    """Runs children on this machine, `workers` at once. `folder` is the sweep's, and locked by it.

    Whatever a killed sweep left in `folder`, processes and temporary files, is cleared first.
    """

    def __init__(self, folder: Path, workers: int = 1, ranks: str = "") -> None:
        self.workers = workers
        self.ranks = ranks
        self._threads = max(1, len(os.sched_getaffinity(0)) // workers)
        self._temporary = folder.resolve() / TEMPORARY
        self._numbers = count()
        self._templates: dict[str, Template | None] = {}
        self._begun = Counter[str]()  # templates, by suite

    def environment(self) -> Environment:
        """Return this machine, with the ranks that a launcher started."""
        return describe(self.ranks)

    def forks(self, group: Group) -> bool:
        """Return whether this group's child may be forked.

        On a host with a GPU none is: CUDA cannot be used in a fork of a process in which an import has
        touched it. Interleaved groups are not: repeats in forks of one process would share its memory layout
        and hash seed, which affect times, and the interval over repeats would not contain that.
        """
        return group.sampling is None and not any(map(os.path.exists, GPUS))

    def run(self, groups: Iterable[Group], limits: Limits, several: bool) -> Generator[CellEvent, None, None]:
        """Run groups as `Executor.run` describes.

        A cell that ends its process leaves its group to a new one.
        """
        self._clear()
        waiting, left = iter(groups), deque[Group]()
        children: list[Child] = []
        with selectors.DefaultSelector() as selector:
            try:
                while True:
                    for group in list(islice(_next(left, waiting), self.workers - len(children))):
                        template = self._template(group, limits, alone=not children, several=several)
                        children.append(self._start(group, limits, selector, template))
                    if not children:
                        break
                    yield from _attend(children, selector)
                    for child in [child for child in children if child.dead]:
                        yield from child.reap()
                        children.remove(child)
                        left.extend([child.rest] if child.rest.cells else [])
            finally:
                for child in children:
                    child.clear()
                for template in filter(None, self._templates.values()):
                    template.close()
                self._templates.clear()
                self._clear()

    def _start(
        self, group: Group, limits: Limits, selector: selectors.BaseSelector, template: Template | None
    ) -> Child:
        temporary = self._new_folder()
        try:
            return Child(group, limits, temporary, selector, self._threads, template)
        except OSError as error:
            raise StoreError(f"cannot start a child process with {temporary}: {error.strerror}") from error

    def _template(self, group: Group, limits: Limits, alone: bool, several: bool) -> Template | None:
        """Return the process that forks this group's child; None where the child is started by itself.

        The child of a sweep's only group is started by itself. While others run, their time limits are due,
        and no time is spent waiting for the imports. Otherwise the wait is at most a cell's time limit.
        """
        if not self.forks(group):
            return None
        suite = code_of(group.cells[0].suite, Path(group.package)).module
        if suite not in self._templates:
            self._templates[suite] = None
            if not several:
                return None
        template = self._templates[suite]
        if template is not None and template.lost:
            template.close()
            logger.warning("the process that forks the children of %s ended", suite)
            template = None
        if template is None:
            self._begun[suite] += 1
            if self._begun[suite] > MOST_TEMPLATES:
                return None
            folder = self._new_folder()
            environ = child_environ(folder, self._threads)
            template = Template(suite, folder, environ, min(START_S, limits.timeout_s))
            self._templates[suite] = template
        return template if template.is_ready(wait=alone) else None

    def _new_folder(self) -> Path:
        """Return a new folder's path; none is longer than the first, which `Template.fork` may not exceed."""
        return self._temporary / f"{next(self._numbers):06d}"

    def _clear(self) -> None:
        kill_by_tmpdir(self._temporary)
        shutil.rmtree(self._temporary, ignore_errors=True)


def _next(left: deque[Group], waiting: Iterator[Group]) -> Iterator[Group]:
    """Yield the groups to start now: what dead children left, then those that wait and have cells."""
    while left:
        yield left.popleft()
    yield from (group for group in waiting if group.cells)


def _attend(children: Sequence[Child], selector: selectors.BaseSelector) -> Iterator[CellEvent]:
    """Wait until a child sends, prints, ends or is overdue, and handle it."""
    deadline_s = min(child.deadline_s for child in children)
    wait_s = None if deadline_s == math.inf else max(0.0, deadline_s - time.monotonic())
    for key, _ in selector.select(wait_s):
        yield from key.data.attend(key.fd)
    for child in children:
        child.kill_if_overdue()


create = LocalExecutor
"""What `executor=local` makes of a results folder and a number of workers; each executor's module has one."""
