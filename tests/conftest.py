"""For every test: one thread of torch each, since several tests run at once (make test)."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
