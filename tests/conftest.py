"""Settings of the whole run."""

from hypothesis import settings

# A deadline would gate on the clock: the machine may be busy.
settings.register_profile("llmconsole", deadline=None)
settings.load_profile("llmconsole")
