"""What hostile pickles are made of."""

import os
import struct

SYSTEM = f"{os.system.__module__}.system"  # posix.system, nt.system
TOUCH = "touch PROOF"


class Evil:
    """Pickles as a call of any function."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


def unicode(text):
    return b"X" + struct.pack("<I", len(text)) + text.encode()
