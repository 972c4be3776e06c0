"""Property tests have no deadline (a time limit is no property) and repeat themselves exactly."""

from hypothesis import settings

settings.register_profile("flowtempo", deadline=None, derandomize=True)
settings.load_profile("flowtempo")
