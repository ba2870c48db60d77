"""Ray actors by name: started once per job, found by whoever calls them, and ended."""

from __future__ import annotations

from typing import Any

CONCURRENT_CALLS = 8
"""Calls that an actor accepts at once; it runs those that need its state one after another."""


def started(kind: type[Any], job: str, name: str, *arguments: Any, is_retried: bool = True) -> Any:
    """Return the job's actor of this name, started if there is none.

    An actor that dies starts anew. `is_retried`: its calls are then made again, else they raise
    `RayActorError`. It outlives the process that started it, until `ended`.
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

    try:
        ray.kill(found(job, name), no_restart=True)
    except ValueError:
        return
