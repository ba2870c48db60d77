"""The disaggregated loader on Ray, after OVERLORD: source loaders, a planner, a constructor per group."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import Any

from harness.instruments.distributed.ray_session import OBJECT_STORE_B, RaySession, join
from suites.dataloader.batch import LoaderError, LoaderSpec, PackedBatch, RankPlace, loads_with
from suites.dataloader.disaggregation.actors import Constructor, Planner, start_loaders
from suites.dataloader.disaggregation.calls import ActorCalls, answer, ended, started
from suites.dataloader.disaggregation.plan import ActorSettings, BalanceSettings, digest_of, refuse_weights

MOST_STEPS = 8
"""Steps of one call at most; the first calls have 1, 2 and 4, so that the first batch is there soon."""

CALL_B = 8 << 20
"""Bytes of one call's batches, of more than one step, at most: small steps share what a call costs."""

STORE_SHARE = 0.5
"""Share of the object store, where Ray is started here, for the batches of all ranks' calls."""


class DisaggregatedLoader(Iterator[PackedBatch]):
    """A rank's batches, without end. All ranks of a job have the same specification and settings.

    `address`: of a Ray cluster; without it the process joins the Ray that it is in, or starts one on the
    loopback address. Whichever rank comes first starts the actors. At most `spec.prefetch` calls are under
    way. Arrays are views of Ray's object store: who keeps one for long copies it. Raises `LoaderError` where
    the data cannot be read, or an actor gives no answer.
    """

    def __init__(
        self, spec: LoaderSpec, place: RankPlace, settings: ActorSettings, address: str = ""
    ) -> None:
        import ray

        refuse_weights(spec)
        self._spec, self._place, self._settings = spec, place, settings
        self._session: RaySession | None = None
        if address:
            join(address)
        elif not ray.is_initialized():
            self._session = RaySession()
        self._step, self._asked, self._steps, self._most_steps = 0, 0, 1, 1
        calls = spec.dp_size * spec.cp_size * (max(spec.prefetch, 1) + 1)  # with the one that is used
        self._call_B = min(CALL_B, int(STORE_SHARE * OBJECT_STORE_B) // calls)
        self._calls: deque[Any] = deque()
        self._ready: deque[PackedBatch] = deque()
        start_loaders(spec, settings)
        started(Planner, settings.job, "planner", spec, settings)
        own, running = digest_of(spec, settings), ActorCalls(settings).planner("specification")
        if running != own:
            raise LoaderError(f"job {settings.job} runs with specification {running}, not with {own}")
        self._constructor = started(
            Constructor, settings.job, f"constructor-{place.dp_rank}", spec, settings, place.dp_rank
        )

    def __iter__(self) -> Iterator[PackedBatch]:
        return self

    def __next__(self) -> PackedBatch:
        while len(self._calls) < max(self._spec.prefetch, 1):
            batches = self._constructor.batches.remote
            self._calls.append(batches(self._asked, self._steps, self._place.cp_rank))
            self._asked += self._steps
            self._steps = min(2 * self._steps, self._most_steps)
        if not self._ready:
            call = self._calls[0]
            name, limit_s = f"constructor {self._place.dp_rank}", 6 * self._settings.timeout_s
            self._ready.extend(answer(call, name, limit_s))
            self._calls.popleft()  # where it failed, the same steps are asked for again
        self._step += 1
        batch = self._ready.popleft()
        batch_B = batch.tokens.nbytes + batch.segments.nbytes
        self._most_steps = min(max(self._call_B // max(batch_B, 1), 1), MOST_STEPS)
        return batch

    def state_dict(self) -> dict[str, Any]:
        """Return where the iteration is: the next step is all that is needed."""
        return {"step": self._step, "specification": digest_of(self._spec, self._settings)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue at a state, bit for bit; raises `LoaderError` where it is of other data or settings."""
        own = digest_of(self._spec, self._settings)
        if state.get("specification") != own:
            raise LoaderError(
                f"the state is that of specification {state.get('specification')}, not of {own}"
            )
        self._step = self._asked = int(state["step"])
        self._steps = 1
        self._calls.clear()
        self._ready.clear()

    def status(self) -> dict[str, Any]:
        """Return what the planner observes: bad samples, source loaders in use, steps planned ahead."""
        result: dict[str, Any] = ActorCalls(self._settings).planner("status")
        return result

    def close(self) -> None:
        """End the iteration; a Ray started here ends too, and with it the actors."""
        self._calls.clear()
        self._ready.clear()
        if self._session is not None:
            end_actors(self._settings, self._spec)
            self._session.close()
            self._session = None


def end_actors(settings: ActorSettings, spec: LoaderSpec) -> None:
    """End all actors of a job."""
    most = max(settings.loaders, settings.most_loaders)
    names = ["planner", *(f"constructor-{one}" for one in range(spec.dp_size))]
    for name in (*names, *(f"loader-{one}" for one in range(most + settings.shadows))):
        ended(settings.job, name)


FORMATS = ("parquet", "jsonl", "array_record")

NEEDS_RAY = True

apply = loads_with("disaggregated")


def batches(spec: LoaderSpec, place: RankPlace) -> Iterator[PackedBatch]:
    """Return the rank's batches; closing the iterator leaves Ray and its actors as they are."""
    address = str(spec.options["ray_address"])
    balance = BalanceSettings(*spec.options.get("balance", ()))
    settings = ActorSettings("loader", balance, most_loaders=int(spec.options.get("most_loaders", 1)))
    with closing(DisaggregatedLoader(spec, place, settings, address)) as loader:
        yield from loader
