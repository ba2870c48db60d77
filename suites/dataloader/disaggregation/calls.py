"""The planner, constructors and source loaders as Ray actors: started once per job, called by name, ended."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from harness.records import Unavailable
from suites.dataloader.batch import LoaderError, one_line
from suites.dataloader.disaggregation.plan import ActorSettings

CONCURRENT_CALLS = 8
"""Calls that an actor accepts at once; it runs those that need its state one after another."""


def started(kind: type[Any], job: str, name: str, *arguments: Any, is_retried: bool = True) -> Any:
    """Return the job's actor of this name, started if there is none; it outlives its starter, until `ended`.

    An actor that dies starts anew. `is_retried`: its calls are then made again, else they raise
    `RayActorError`.
    """
    import ray

    return (
        ray.remote(kind)
        .options(
            name=f"{job}-{name}",
            get_if_exists=True,
            lifetime="detached",
            num_cpus=0,
            max_restarts=-1,
            max_task_retries=-1 if is_retried else 0,
            max_concurrency=CONCURRENT_CALLS,
        )
        .remote(*arguments)
    )


def found(job: str, name: str) -> Any:
    """Return the handle of a job's actor; raises ValueError where there is none."""
    import ray

    return ray.get_actor(f"{job}-{name}")


def ended(job: str, name: str) -> None:
    """End a job's actor, if there is one."""
    import ray

    with suppress(ValueError):
        ray.kill(found(job, name), no_restart=True)


READING_S = 5.0  # how long a source loader may take to say what it is reading, for an error's text


RETRY_S = 0.05


class ActorCalls:
    """How an actor calls the others: by name, again where one died."""

    def __init__(self, settings: ActorSettings) -> None:
        self._settings = settings
        self._handles: dict[str, Any] = {}

    def handle(self, name: str) -> Any:
        """Return an actor's handle; raises ValueError where there is none."""
        if name not in self._handles:
            self._handles[name] = found(self._settings.job, name)
        return self._handles[name]

    def planner(self, method: str, *arguments: Any) -> Any:
        """Return the planner's answer, for which it may itself wait for source loaders; Ray retries."""
        call = getattr(self.handle("planner"), method).remote(*arguments)
        return answer(call, "the planner", 3 * self._settings.timeout_s)

    def call_all(self, calls: Mapping[int, tuple[str, tuple[Any, ...]]]) -> tuple[dict[int, Any], list[int]]:
        """Call source loaders at once; return their answers, and those that died or are not there yet."""
        import ray

        pending, answers, dead = {}, {}, []
        for loader, (method, arguments) in calls.items():
            try:
                pending[loader] = getattr(self.handle(f"loader-{loader}"), method).remote(*arguments)
            except ValueError:
                dead.append(loader)
        for loader, call in pending.items():
            try:
                answers[loader] = answer(
                    call,
                    f"source loader {loader}",
                    self._settings.timeout_s,
                    partial(self._reading, loader),
                    may_die=True,
                )
            except ray.exceptions.RayActorError:
                self._handles.pop(f"loader-{loader}", None)
                dead.append(loader)
        if dead:
            time.sleep(RETRY_S)
        return answers, dead

    def limit(self) -> Callable[[int], None]:
        """Return a function that raises `LoaderError` where a source loader stays away for too long."""
        until_s = time.monotonic() + self._settings.timeout_s

        def check(loader: int) -> None:
            if time.monotonic() > until_s:
                raise LoaderError(
                    f"source loader {loader} died and did not come back within {self._settings.timeout_s:g} s"
                )

        return check

    def _reading(self, loader: int) -> str:
        import ray

        try:
            source = ray.get(self.handle(f"loader-{loader}").reading.remote(), timeout=READING_S)
        except Exception:
            return ""
        return f"; it is reading source {source}" if source else ""


def answer(
    call: Any, name: str, timeout_s: float, doing: Callable[[], str] = lambda: "", may_die: bool = False
) -> Any:
    """Return a call's answer; raises an actor's own `LoaderError` or `Unavailable` as it is.

    Raises `LoaderError` in one line where it takes too long (`doing` then adds what the actor does) or Ray
    fails; `RayActorError` where an actor that `may_die` has died.
    """
    import ray

    try:
        return ray.get(call, timeout=timeout_s)
    except ray.exceptions.GetTimeoutError:
        raise LoaderError(f"{name} gave no answer within {timeout_s:g} s{doing()}") from None
    except ray.exceptions.RayError as error:
        if may_die and isinstance(error, ray.exceptions.RayActorError):
            raise
        cause = getattr(error, "cause", None) or error
        for kind in (LoaderError, Unavailable):
            if isinstance(cause, kind):
                raise kind(str(cause)) from None
        raise LoaderError(f"{name}: {type(cause).__name__}: {one_line(cause)}") from error
