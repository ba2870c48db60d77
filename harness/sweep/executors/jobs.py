"""Groups of cells as jobs of a queue: submit, follow, collect; the common part of `slurm` and `ray`.

A job runs its groups with the local executor on its node (`harness.sweep.executors.job`) and appends the
events to a file of its folder. This side reads the files, and asks the queue about jobs that cannot report
their end. So jobs go on where this process is killed, and the next one finds them by their folders.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Protocol

from harness.records import LOST, Group, Limits, Status
from harness.sweep.environment import Environment, describe_elsewhere
from harness.sweep.executors import CellEvent, ExecutorError
from harness.sweep.executors.job_folder import UNSEEN, JobEnd, JobFolder, JobSpec, SubmittedJob, job_folders
from harness.sweep.store import RECORDS, StoreError, read_records
from harness.units import counted

Ends = Callable[[Sequence[SubmittedJob]], dict[str, JobEnd | None]]


class EarlierJobs:
    """The jobs that nobody has followed to their end; a group finds its cells among them."""

    def __init__(self) -> None:
        self.jobs: list[SubmittedJob] = []
        self._blocked: deque[Group] = deque()  # until jobs that have some of their cells have ended

    def find(self, folder: Path, limits: Limits, ends: Ends) -> list[SubmittedJob]:
        """Find the jobs of earlier commands; return those to cancel: they have other limits, or were
        to end before.

        What was never submitted is removed. Of a job that has ended, only the cells that have count.
        """
        found = []
        for job_folder in job_folders(folder):
            spec = job_folder.spec()
            if spec is None:
                job_folder.remove()
                continue
            found.append(SubmittedJob(job_folder, spec))
        known = ends(found)
        cancelled = []
        for job in found:
            end = known.get(job.name)
            job.note_end(end)
            if job.claim is None and end is not None and not end.known and job.folder.forbid():
                job.folder.remove()
            elif job.spec.limits != limits or job.folder.is_forbidden:
                cancelled.append(job)
            else:
                if end is not None:
                    job.keep_finished()
                if job.cells:
                    self.jobs.append(job)
                else:
                    job.folder.remove()
        if self.jobs:
            logger.info("collecting %s of an earlier command", counted(len(self.jobs), "job"))
        return cancelled

    def not_submitted(self, group: Group, followed: list[SubmittedJob]) -> list[Group]:
        """Return what of a group is to be submitted; the rest is expected from jobs, now in `followed`.

        Cells that are timed together must come out of one job: where only some are in one, the group waits
        until that has ended.
        """
        cells = {cell.id for cell in group.cells}
        having = [job for job in self.jobs if job.cells & cells]
        if not having:
            if any(job.cells & cells for job in followed):
                self._blocked.append(group)
                return []
            return [group]
        followed.extend(job for job in having if job not in followed)
        if group.sampling is not None and not cells <= having[0].cells:
            self._blocked.append(group)
            self.jobs = [job for job in self.jobs if job not in having]
            return []
        for job in having:
            job.want(cells)
            cells -= job.cells
        rest = tuple(cell for cell in group.cells if cell.id in cells)
        return [group._replace(cells=rest)] if rest else []

    def unblocked(self, followed: Sequence[SubmittedJob]) -> Group | None:
        """Return a group that waited for jobs which have ended; None where there is none."""
        for _ in range(len(self._blocked)):
            group = self._blocked.popleft()
            cells = {cell.id for cell in group.cells}
            if not any(job.cells & cells for job in followed):
                return group
            self._blocked.append(group)
        return None

    def release(self, job: SubmittedJob) -> None:
        """Remove the folder of a job that is over, unless a later group may have cells in it."""
        if job not in self.jobs:
            job.folder.remove()
        elif not job.unasked:
            self.jobs.remove(job)
            job.folder.remove()

    def clear(self, folder: Path, ends: Ends) -> None:
        """Remove the folders of jobs whose cells all have records; name the jobs that go on."""
        if not self.jobs:
            return
        recorded = set()
        if (folder / RECORDS).is_file():
            recorded = {record.cell.id for record in read_records(folder)}
        known = ends(self.jobs)
        running = [job.name for job in self.jobs if job.name in known and known[job.name] is None]
        for job in self.jobs:
            if job.name not in running and job.cells <= recorded:
                job.folder.remove()
        if running:
            names = ", ".join(running)
            logger.info(
                "%s of an earlier command, with other cells, go on: %s", counted(len(running), "job"), names
            )


logger = logging.getLogger(__name__)

POLL_S = (0.05, 1.0)  # seconds between two looks at the files: after something happened, and at most
ASK_S = (1.0, 10.0)  # seconds between two questions to the queue, likewise

SETTLE_S = 15.0
"""How long the files of a job that has ended may take to appear on a shared file system.

A job that the queue does not know counts as ended if the queue does not know it after this time either."""

LEAVE_S = 60.0
"""How long after the end of the last job a queue may refuse others, as it still counts that one."""

CANCEL_S = 60.0  # how long cancelled jobs may take to end


class QueueRefusal(Exception):
    """The queue did not accept jobs; the text is one line."""


class JobQueue(Protocol):
    """Where jobs run: Slurm or Ray. `title` is the executor's name."""

    title: str

    def open(self) -> None:
        """Reach the queue; raises ExecutorError."""

    def submit(self, jobs: Sequence[JobFolder], timed: bool) -> None:
        """Queue jobs that ask for the same, together where the queue can do that.

        `timed`: their cells are, so that each job needs its nodes alone. Raises QueueRefusal; then none of
        them is queued.
        """

    def ends(self, jobs: Mapping[str, str]) -> Mapping[str, JobEnd | None]:
        """Return by name how each job ended; None while it waits or runs.

        `jobs` has by name who claimed each, "" for nobody. A job that the queue does not know is left out.
        Raises OSError where the queue does not answer now.
        """

    def cancel(self, names: Sequence[str]) -> None:
        """End those jobs that wait or run."""

    def close(self) -> None:
        """Release what `open` acquired."""


class JobsExecutor:
    """Runs groups as jobs of `queue`, at most `workers` in it at once. `folder` is the sweep's.

    `request` names in words what jobs get, for the identity of cells; `gpus` is their number per node.
    """

    def __init__(
        self, folder: Path, queue: JobQueue, workers: int, groups_per_job: int, request: str, gpus: int
    ) -> None:
        self.ranks = request
        self._folder = folder
        self._queue = queue
        self._workers = workers
        self._groups_per_job = groups_per_job
        self._gpus = gpus
        self._jobs: list[SubmittedJob] = []
        self._left: deque[Group] = deque()  # that the queue refused for now
        self._full = False
        self._ended_s: float | None = None  # when a job last ended
        self._worked = False  # a job has begun, so nodes see the folder
        self._asked_s = 0.0
        self._ask_s = ASK_S[0]

    def environment(self) -> Environment:
        """Return what is known of the nodes before a job runs."""
        return describe_elsewhere(self.ranks, self._gpus)

    def forks(self, group: Group) -> bool:
        """Return False: whether children are forked is known on the node."""
        return False

    def run(self, groups: Iterable[Group], limits: Limits, several: bool) -> Generator[CellEvent, None, None]:
        """Run groups as `Executor.run` describes; closing the generator cancels the jobs.

        Raises ExecutorError where the queue cannot be reached or refuses every job, or where the nodes do
        not see the folder.
        """
        waiting, kind, poll_s = iter(groups), self.environment().host, POLL_S[0]
        self._queue.open()
        earlier = EarlierJobs()
        try:
            self._cancel(earlier.find(self._folder, limits, self._ends_of_earlier))
            self._end_jobs([job.name for job in earlier.jobs if job.end is not None and not job.end.known])
            while True:
                self._fill(earlier, waiting, limits, kind)
                if not self._jobs and not self._left:
                    break
                busy = False
                self._full &= bool(self._jobs)  # with no job of ours in the queue, try again after a pause
                for job in list(self._jobs):
                    for event in self._follow(job):
                        busy = True
                        yield event
                    if job.is_over:
                        busy = True
                        self._jobs.remove(job)
                        self._ended_s = time.monotonic()
                        earlier.release(job)
                        self._full = False
                self._ask(busy)
                poll_s = POLL_S[0] if busy else min(2 * poll_s, POLL_S[1])
                if not busy:
                    time.sleep(poll_s)
            earlier.clear(self._folder, self._ends)
        except BaseException:
            self._cancel([*self._jobs, *earlier.jobs])
            raise
        finally:
            self._jobs.clear()
            self._queue.close()

    def _fill(self, earlier: EarlierJobs, waiting: Iterator[Group], limits: Limits, kind: str) -> None:
        """Submit groups while there is room; what an earlier command's jobs have is expected from those."""
        bundles: list[list[Group]] = []
        while len(self._jobs) + len(bundles) < self._workers and not self._full:
            bundle: list[Group] = []
            while len(bundle) < self._groups_per_job:
                group = self._left.popleft() if self._left else earlier.unblocked(self._jobs)
                if group is None and (group := next((one for one in waiting if one.cells), None)) is None:
                    break
                bundle += earlier.not_submitted(group, self._jobs)
            if not bundle:
                break
            bundles.append(bundle)
        for timed, alike in groupby(bundles, _is_timed):
            self._submit([JobSpec(tuple(one), limits, self.ranks, kind) for one in alike], timed)

    def _submit(self, specs: Sequence[JobSpec], timed: bool) -> None:
        """Submit jobs together, in halves where the queue does not accept so many at once.

        A single job that it does not accept now is kept; raises ExecutorError where it accepts none.
        """
        if self._full:
            self._left.extend(group for spec in specs for group in spec.groups)
            return
        try:
            folders = JobFolder.create(self._folder, specs)
        except OSError as error:
            raise StoreError(f"cannot write a job into {self._folder}: {error.strerror}") from error
        try:
            self._queue.submit(folders, timed)
        except QueueRefusal as refusal:
            for folder in folders:
                folder.remove()
            if len(specs) > 1:
                half = len(specs) // 2
                self._submit(specs[:half], timed)
                self._submit(specs[half:], timed)
                return
            if not self._jobs and not self._may_take_more():
                raise ExecutorError(f"executor={self._queue.title}: {refusal}") from None
            if self._jobs:
                logger.info("%s; trying again once a job has ended", refusal)
            self._left.extend(specs[0].groups)
            self._full = True
            return
        for folder, spec in zip(folders, specs, strict=True):
            job = SubmittedJob(folder, spec)
            job.want(job.cells)
            self._jobs.append(job)

    def _may_take_more(self) -> bool:
        """Return whether the queue may count jobs that have reported their end and not left it yet."""
        return self._ended_s is not None and time.monotonic() - self._ended_s < LEAVE_S

    def _follow(self, job: SubmittedJob) -> Iterator[CellEvent]:
        """Yield what a job has reported, and what it can report no more."""
        yield from job.collect()
        self._worked |= job.claim is not None
        if job.is_over or not job.is_settled(SETTLE_S) or job.end is None:
            return
        yield from job.collect()
        if job.end.never:
            if not self._worked:
                raise ExecutorError(f"executor={self._queue.title}: {LOST}{job.end.reason}")
            self._end_jobs([job.name])
        elif not job.end.known:
            if job.claim is None and not _forbid(job):  # it has just begun
                job.note_end(None)
                return
            self._end_jobs([job.name])
        elif job.end.by_itself and job.claim is None:
            self._refuse(job, job.end)
        yield from job.finish(job.end)

    def _refuse(self, job: SubmittedJob, end: JobEnd) -> None:
        """Raise ExecutorError for a job that ended by itself before it began, which others would, too.

        Once a job has begun, only a node that does not see the folder is a reason.
        """
        cause = end.cause or job.folder.log()
        if cause is None:
            cause = f"its node {UNSEEN} {job.folder.path}"
        if UNSEEN in cause or not self._worked:
            raise ExecutorError(
                f"executor={self._queue.title}: {LOST}{end.reason} before it began: {cause or 'no output'}; "
                "expected nodes that share the folder out= and this installation"
            )

    def _ask(self, busy: bool) -> None:
        """Ask the queue how jobs ended, now and then; sooner where it did not know one."""
        if time.monotonic() - self._asked_s < self._ask_s:
            return
        ends = self._ends([job for job in self._jobs if job.end is None or not job.end.known])
        unknown = any(end is not None and not end.known for end in ends.values())
        self._ask_s = ASK_S[0] if busy or unknown else min(2 * self._ask_s, ASK_S[1])
        self._asked_s = time.monotonic()
        for job in self._jobs:
            if job.name in ends:
                job.note_end(ends[job.name])

    def _ends(self, jobs: Sequence[SubmittedJob]) -> dict[str, JobEnd | None]:
        """Return by name how jobs ended, unknown ones too; empty where the queue does not answer."""
        if not jobs:
            return {}
        try:
            known = self._queue.ends({job.name: job.by for job in jobs})
        except OSError as error:
            logger.warning("%s does not answer: %s", self._queue.title, error)
            return {}
        gone = JobEnd(Status.UNAVAILABLE, f"is not known to {self._queue.title} any more", known=False)
        return {job.name: known.get(job.name, gone) for job in jobs}

    def _ends_of_earlier(self, jobs: Sequence[SubmittedJob]) -> dict[str, JobEnd | None]:
        """Return the same, after a second question about jobs that began and that the queue does not know."""
        ends = self._ends(jobs)
        unknown = [job for job in jobs if job.claim is not None and not job.folder.has_ended()]
        unknown = [job for job in unknown if (end := ends.get(job.name)) is not None and not end.known]
        if unknown:
            time.sleep(ASK_S[0])
            ends |= self._ends(unknown)
        return ends

    def _end_jobs(self, names: Sequence[str]) -> None:
        try:
            if names:
                self._queue.cancel(names)
        except OSError as error:
            logger.warning("%s does not answer: %s", self._queue.title, error)

    def _cancel(self, jobs: Sequence[SubmittedJob]) -> None:
        """Cancel jobs, wait until they have ended, and remove their folders."""
        for job in jobs:
            _forbid(job)
        self._end_jobs([job.name for job in jobs])
        until_s = time.monotonic() + CANCEL_S
        alive = list(jobs)
        while alive and time.monotonic() < until_s:
            ends = self._ends(alive)
            alive = [job for job in alive if ends.get(job.name, job) is None or job.name not in ends]
            if alive:
                time.sleep(ASK_S[0])
        for job in jobs:
            if job not in alive:
                job.folder.remove()
        if alive:
            names = ", ".join(job.name for job in alive)
            logger.warning("%s did not end when cancelled: %s", counted(len(alive), "job"), names)


def _is_timed(groups: Iterable[Group]) -> bool:
    return any(group.sampling is not None for group in groups)


def _forbid(job: SubmittedJob) -> bool:
    """Keep a job from beginning, if its folder can be written; return False where it has begun."""
    try:
        return job.folder.forbid()
    except OSError:
        return True
