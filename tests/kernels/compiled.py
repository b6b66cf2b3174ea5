"""Compile every Triton kernel for an H200 (sm_90), without a GPU, and print what came out.

    python -m tests.kernels.compiled [the beginning of a kernel's name]

One JSON line a kernel: registers, bytes of registers spilled to memory, shared memory, and whether
its products run on the matrix units. Triton brings NVIDIA's assembler along.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from golddiff.kernels import gather_triton, kamb_triton, masked_triton, screen_triton
from golddiff.kernels.mask_blocks import NARROW, WIDE

H200 = GPUTarget("cuda", 90, 32)
ASSEMBLER = Path(triton.__file__).parent / "backends/nvidia/bin/ptxas"

# What the arguments are, by name: the same in all kernels.
POINTERS = {
    "pixels": "*u8", "rows": "*i64", "start": "*i64", "inputs": "*i32", "values": "*fp16",
    "members": "*i32", "centres": "*i32", "classes": "*i32", "first": "*i32", "last": "*i32",
    "high": "*fp16", "low": "*fp16", "levels": "*fp16", "keys": "*i64", "prefix": "*i64",
    "counts": "*i32",
}  # fmt: skip
NUMBERS = ["queries", "k", "d", "width", "row_stride", "part_size", "locations", "patch", "m", "b"]
MULTIPLES_OF_16 = {"width", "part_size"}  # as Triton finds them at run time


def compiled(kernel, constants, warps, stages=3):
    names = kernel.arg_names
    kinds = {n: POINTERS.get(n, "*fp32") for n in names}
    kinds |= dict.fromkeys(NUMBERS, "i32") | {"shift": "i32"}
    if "keys" not in names:
        kinds["shift"] = "*fp32" if "unit" in names else "fp32"
    signature = {n: "constexpr" if n in constants else kinds[n] for n in names}
    aligned = {
        (i,): [["tt.divisibility", 16]]
        for i, n in enumerate(names)
        if signature[n].startswith("*") or n in MULTIPLES_OF_16
    }
    source = ASTSource(
        kernel, signature, {(names.index(n),): v for n, v in constants.items()}, aligned
    )
    built = triton.compile(source, target=H200, options={"num_warps": warps, "num_stages": stages})
    with tempfile.NamedTemporaryFile("w", suffix=".ptx") as file:
        file.write(built.asm["ptx"])
        file.flush()
        report = subprocess.run(
            [ASSEMBLER, "-v", "-arch=sm_90a", file.name, "-o", "/dev/null"],
            capture_output=True, text=True, check=True,
        ).stderr  # fmt: skip
    return {
        "registers": int(re.findall(r"Used (\d+) registers", report)[-1]),
        "spilled": sum(map(int, re.findall(r"(\d+) bytes spill stores", report))),
        "shared": built.metadata.shared,
        "matrix_units": "wgmma.mma_async" in built.asm["ptx"] or "mma.sync" in built.asm["ptx"],
        "wide_loads": bool(re.search(r"ld\.global[^;]*\.v4|cp\.async[^;]* 0x10", built.asm["ptx"])),
    }


def kernels():
    masked = masked_triton.masked_kernel
    for name, tiling in (("wide", WIDE), ("narrow", NARROW)):
        for parts in (1, 2):
            constants = {
                "WEIGHTED": True, "PARTS": parts, "IMAGES": tiling.images,
                "INPUTS": tiling.inputs, "OUTPUTS": tiling.outputs,
            }  # fmt: skip
            yield f"masked {parts} {name}", masked, constants, tiling.warps
    rows = {"ROWS": gather_triton.ROWS, "VALUES": gather_triton.VALUES}
    yield "distance", gather_triton.distance_kernel, rows, 4
    yield "weighted sum", gather_triton.weighted_sum_kernel, rows, 4
    constants = {
        "GATHERED": True, "IMAGES": screen_triton.IMAGES, "QUERIES": screen_triton.QUERIES,
        "BLOCK": screen_triton.BLOCK,
    }  # fmt: skip
    yield "screen", screen_triton.screen_kernel, constants, 4
    yield "digit", screen_triton.digit_kernel, {"KEYS": screen_triton.KEYS}, 4
    constants = {
        "WEIGHTED": True, "CHANNELS": 3, "PADDED": 4, "POSITIONS": kamb_triton.POSITIONS,
    }  # fmt: skip
    yield "kamb difference", kamb_triton.difference_kernel, constants, 8
    yield "kamb product", kamb_triton.product_kernel, constants, 8


def main() -> None:
    for name, kernel, constants, warps in kernels():
        if not name.startswith("".join(sys.argv[1:2])):
            continue
        print(json.dumps({"kernel": name, **compiled(kernel, constants, warps)}), flush=True)


if __name__ == "__main__":
    main()
