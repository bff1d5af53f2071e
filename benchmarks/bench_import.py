"""`import unitvar` costs under 50 ms on top of `import torch`."""

from __future__ import annotations

import statistics
import subprocess
import sys

from rich.progress import track

from interleaved import RESULTS, show
from unitvar_reproduction import record

SCRIPT = """
from time import perf_counter as now
a = now(); import torch; b = now(); import unitvar; c = now()
print(b - a, c - b)
"""

if __name__ == "__main__":
    times = []
    for _ in track(range(16), "import", transient=True):
        printed = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True).stdout
        times.append([float(word) * 1e3 for word in printed.split()])
    torch_ms, ours_ms = (statistics.median(column) for column in zip(*times[1:], strict=True))
    rows: list[dict[str, object]] = [
        {"import torch, ms": torch_ms, "then import unitvar, ms": ours_ms, "limit ms": 50.0}
    ]
    show("Import", rows)
    record.save(RESULTS / "import.json", {"import": rows})
