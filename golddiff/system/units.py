"""Numbers of things, durations, byte sizes and image shapes as text."""

from __future__ import annotations


def counted(count: int, noun: str) -> str:
    """'1 image', '2,000 images'."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def duration(seconds: float) -> str:
    """Two or three digits and a unit: '0.31 ms', '12 ms', '4.2 s', '3 min 20 s'."""
    for scale, unit in ((1e-6, "µs"), (1e-3, "ms"), (1.0, "s")):
        value = seconds / scale
        if value < 999.5 and (unit != "s" or value < 119.5):  # as rounded below
            return f"{_short(value)} {unit}"
    whole = round(seconds)
    return f"{whole // 60} min {whole % 60} s"


def byte_size(count: int) -> str:
    """Decimal units: '812 bytes', '2.1 MB'."""
    if count < 1000:
        return counted(count, "byte")
    power = min(4, (len(str(round(count * 1.0005))) - 1) // 3)  # 999,960 is 1.0 MB
    return f"{_short(count / 1000**power)} {' kMGT'[power]}B"


def shape_text(shape: tuple[int, ...]) -> str:
    """Width x height: '28 x 28 grey', '24 x 32 RGB'; else '4 x 8 x 8', 'points of 2 values'."""
    if len(shape) == 3 and shape[0] in (1, 3):
        return f"{shape[2]} x {shape[1]} {'grey' if shape[0] == 1 else 'RGB'}"
    if len(shape) == 1:
        return f"points of {shape[0]} values"
    return " x ".join(map(str, shape))


def _short(value: float) -> str:
    if value >= 9.95:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 0.995 else f"{value:.2f}"
