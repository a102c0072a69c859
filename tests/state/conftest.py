"""Property tests here run on machines that are busy with other things: no example has a deadline."""

from hypothesis import settings

settings.register_profile("weir", deadline=None)
settings.load_profile("weir")
