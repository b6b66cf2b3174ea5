"""A stand-in for a separate process."""

from golddiff_lab.process import Process


class InProcess(Process):
    """Runs its object in this process, since starting another takes seconds."""

    def __init__(self, name, make, spec, threads):
        self.name, self._make, self._spec = name, make, spec

    def __enter__(self):
        self._object = self._make(self._spec)
        return self

    def close(self):
        pass

    def ask(self, method, *arguments):
        return getattr(self._object, method)(*arguments)
