"""A stand-in for a process."""

from golddiff_lab.process import Process


class Here(Process):
    """An object in this process: starting others takes seconds, and few tests are about that."""

    def __init__(self, name, make, spec, threads):
        self.name, self._make, self._spec = name, make, spec

    def __enter__(self):
        self._made = self._make(self._spec)
        return self

    def close(self):
        pass

    def ask(self, method, *arguments):
        return getattr(self._made, method)(*arguments)
