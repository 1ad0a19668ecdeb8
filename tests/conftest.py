"""Random examples: others at every run, or the same each time where a run must be repeatable."""

import os

from hypothesis import settings

settings.register_profile("repeatable", derandomize=True, database=None)
if os.environ.get("MUSTER_REPEATABLE_TESTS"):
    settings.load_profile("repeatable")
