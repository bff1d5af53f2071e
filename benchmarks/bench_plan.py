"""A warm plan of a ResNet-50 costs at most one kaiming_normal_ pass over its weights, initialize_ at most two.

initialize_ keeps no copy: its peak of extra memory is at most 5 % of the weights. Cost grows linearly with the number
of ops: MLPs of 10 to 1000 layers. A Llama of 70 billion parameters is planned on the meta device in less than a minute
and 500 MB, and its plan is saved and loaded.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import nn

import unitvar
from interleaved import RESULTS, interleave, ratio, show
from unitvar_reproduction import record
from zoo.convolutional import resnet

LIMITS = {"plan": 1.0, "initialize_": 2.0}
MEMORY_LIMIT = 0.05
LLAMA_LIMITS = {"s": 60.0, "MB": 500.0}


def mlp(depth: int) -> nn.Sequential:
    """Build a chain of layers that are cheap to fill."""
    return nn.Sequential(*(m for _ in range(depth) for m in (nn.Linear(8, 8), nn.ReLU(), nn.Dropout(0.1))))


def extra_memory(call: Callable[[], object]) -> int:
    """Return by how many bytes the process grows at most during a call (Linux with glibc)."""

    def resident(name: str) -> int:
        fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
        return 1024 * int(fields[name].split()[0])

    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # memory that the allocator keeps would hide what the call takes
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = resident("VmRSS")
    call()
    return max(0, resident("VmHWM") - before)


def llama() -> dict[str, object]:
    """Plan the 70-billion-parameter Llama 3 configuration on the meta device: once, cold, as one would."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=8192, intermediate_size=28672, num_hidden_layers=80, num_attention_heads=64, num_key_value_heads=8,
        vocab_size=128256, max_position_embeddings=8192, rms_norm_eps=1e-5, use_cache=False,
    )  # fmt: skip
    with torch.device("meta"):
        model = LlamaForCausalLM(config)  # type: ignore[no-untyped-call]
    tokens = {"input_ids": torch.zeros(1, 128, dtype=torch.long)}
    made: list[unitvar.Plan] = []
    start = time.perf_counter()
    memory = extra_memory(lambda: made.append(unitvar.plan(model, tokens, embeddings="unit")))
    seconds = time.perf_counter() - start
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "plan.json"
        start = time.perf_counter()
        made[0].save(path)
        unitvar.Plan.load(path)
        return {
            "parameters": sum(p.numel() for p in model.parameters()),
            "weights": len(made[0]),
            "s": seconds,
            "limit s": LLAMA_LIMITS["s"],
            "peak extra MB": memory / 1e6,
            "limit MB": LLAMA_LIMITS["MB"],
            "file MB": path.stat().st_size / 1e6,
            "save and load s": time.perf_counter() - start,
        }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=11)
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # drawing normal numbers takes one; a second would help only ours
    model, example = resnet(batch=2)
    weights = [p for p in model.parameters() if p.dim() > 1]
    competitors: dict[str, Callable[[], object]] = {
        "plan": lambda: unitvar.plan(model, example),
        "initialize_": lambda: unitvar.initialize_(model, example),
        "kaiming_normal_": lambda: [nn.init.kaiming_normal_(w) for w in weights],
    }
    times = interleave(competitors, repeats=arguments.rounds, label="ResNet-50")
    rows: list[dict[str, object]] = []
    for name, limit in LIMITS.items():
        milliseconds = {
            "ms": statistics.median(times[name]) * 1e3,
            "peer ms": statistics.median(times["kaiming_normal_"]) * 1e3,
        }
        rows.append({"call": name, **milliseconds, **ratio(times, name, "kaiming_normal_"), "limit": limit})
    show("Over one kaiming_normal_ pass over the weights of a ResNet-50", rows)
    size = sum(w.numel() * w.element_size() for w in weights)
    shares = [extra_memory(competitors["initialize_"]) / size for _ in range(arguments.rounds)]
    memory: dict[str, object] = {
        "call": "initialize_",
        "weights MB": size / 1e6,
        "peak extra share": max(shares),
        "limit": MEMORY_LIMIT,
    }
    show("Memory", [memory])
    chains = {str(depth): mlp(depth) for depth in (10, 30, 100, 300, 1000)}
    plans = {depth: partial(unitvar.plan, net, torch.zeros(2, 8)) for depth, net in chains.items()}
    taken = {d: statistics.median(t) * 1e3 for d, t in interleave(plans, repeats=5, label="by depth").items()}
    depths: list[dict[str, object]] = [{"layers": d, "ms": ms, "ms a layer": ms / int(d)} for d, ms in taken.items()]
    show("A plan by depth", depths)
    large = llama()
    show("A plan of a 70-billion-parameter Llama on the meta device", [large])
    results = {"resnet50": rows, "memory": memory, "depth": depths, "llama": large}
    record.save(RESULTS / "plan.json", {**vars(arguments), **results})
