"""Jobs that an earlier command submitted for the same folder: their cells are expected from them."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from harness.records import Group, Limits
from harness.sweep.executors.job_folder import job_folders
from harness.sweep.executors.submitted_job import JobEnd, SubmittedJob
from harness.sweep.store import RECORDS, read_records
from harness.units import counted

logger = logging.getLogger(__name__)

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
            job = SubmittedJob(job_folder, spec)
            job.claim = job_folder.claimed()
            found.append(job)
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
