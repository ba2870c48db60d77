"""One Ray for many cells of the dataloader suite: starting one takes eight seconds of a processor."""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import replace

from harness.instruments.distributed.ray_session import RaySession
from suites.dataloader.batch import library
from suites.dataloader.loader_ranks import LoaderRanks
from suites.dataloader.loaders.ray_data import LEAST_OBJECT_STORE_B


class SharedRay:
    def __init__(self):
        self.session, self.start_s, self.own = None, 0.0, True

    @property
    def address(self):
        if self.session is None:
            begin_s = time.perf_counter()
            self.session = RaySession(object_store_B=LEAST_OBJECT_STORE_B)
            self.start_s = time.perf_counter() - begin_s
        return self.session.address

    def end_actors(self):
        import ray
        from ray.util import list_named_actors

        if self.session is not None:
            for name in list_named_actors():
                ray.kill(ray.get_actor(name), no_restart=True)

    def end(self):
        if self.session is not None:
            self.session.close()


@contextmanager
def shared_ray(patch):
    """Within this context cells have one Ray. It is none of a cell's processes, so none of its memory."""
    shared, with_own, leave_own = SharedRay(), LoaderRanks._with_ray, LoaderRanks._leave_ray

    def with_ray(ranks, spec, object_store_B):
        if shared.own:
            shared.own = False
            return with_own(ranks, spec, object_store_B)
        library("ray")
        options = {**spec.options, "ray_address": shared.address}
        ranks.ray_start_s = shared.start_s
        return replace(spec, options=options)

    def leave_ray(ranks):
        leave_own(ranks)
        shared.end_actors()

    patch.setattr(LoaderRanks, "_with_ray", with_ray)
    patch.setattr(LoaderRanks, "_leave_ray", leave_ray)
    try:
        yield
    finally:
        shared.end()
