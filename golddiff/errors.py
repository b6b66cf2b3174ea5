"""The errors that golddiff raises, for those who catch them."""

from golddiff.system.errors import *  # noqa: F403
