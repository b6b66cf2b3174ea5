"""CUDA graphs: a step's launches recorded once and sent off together afterwards.

For small data sets a step is some fifty launches of a few microseconds each; replayed, they cost
one. A recording holds for one batch size, noise level and class: sampling repeats exactly those.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

import torch

from golddiff.device.steps import Step

RECORDINGS_KEPT = 32
WARM_UPS = 2  # kernels compile and caches fill outside of the recording


@dataclass(frozen=True)
class Recording:
    """A recorded step, and where it reads and writes."""

    graph: torch.cuda.CUDAGraph
    x: torch.Tensor
    out: torch.Tensor


class RecordedStep:
    """A step that is recorded when first called, and replayed from then on.

    Args:
        step: of a device with all its pixels resident; it must neither wait for the device nor
            work on the CPU.
    """

    capturable = False

    def __init__(self, step: Step) -> None:
        self._step = step
        self._kept: OrderedDict[tuple[int, float, int | None], Recording] = OrderedDict()

    def __call__(self, x: torch.Tensor, sigma: float, label: int | None) -> torch.Tensor:
        """One step."""
        key = (len(x), sigma, label)
        if key not in self._kept:
            if len(self._kept) >= RECORDINGS_KEPT:
                self._kept.popitem(last=False)
            self._kept[key] = self._recorded(x, sigma, label)
        self._kept.move_to_end(key)
        recording = self._kept[key]
        recording.x.copy_(x)
        recording.graph.replay()
        return recording.out.clone()

    def _recorded(self, x: torch.Tensor, sigma: float, label: int | None) -> Recording:
        fixed = x.clone()
        side = torch.cuda.Stream(x.device)  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream(x.device))
        with torch.cuda.stream(side):
            for _ in range(WARM_UPS):
                self._step(fixed, sigma, label)
        torch.cuda.current_stream(x.device).wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = self._step(fixed, sigma, label)
        return Recording(graph, fixed, out)


def recorded(step: Step, device: torch.device, resident: bool) -> Step:
    """The step with its launches recorded, where that can be done; else the step itself."""
    if device.type == "cuda" and resident and step.capturable:
        return RecordedStep(step)
    return step
