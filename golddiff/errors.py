"""The exceptions that golddiff raises."""

from golddiff.system.errors import *  # noqa: F403
