"""Under `python -W error` no call warns of its own making, nor leaves a file open."""

import subprocess
import sys

CALLS = """
import tempfile
from pathlib import Path
import torch
from torch import nn
import unitvar

x = torch.randn(16, 6)
model = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(0.3), nn.Linear(6, 4))
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x), batch_size=8)
unitvar.activation_moments("gelu")
unitvar.init.sphere_(torch.empty(4, 6), "relu", dropout=0.3)
for method in ("analytic", "measured"):
    unitvar.initialize_(model, x, method=method)
str(unitvar.measure(model, x, runs=2))
with unitvar.watch(model, every=1) as history:
    model(x).square().mean().backward()
str(history)
for method in ("one-pass", "sequential"):
    str(unitvar.reestimate_bn_(model, loader, method=method))
with unitvar.reestimated_bn(model, loader), unitvar.dropout_off(model):
    pass
unitvar.expect(model, x)
unitvar.expected(model)(x)
with tempfile.TemporaryDirectory() as folder:
    plan, path = unitvar.plan(model, x), Path(folder) / "file"
    plan.save(path)
    unitvar.Plan.load(path).apply_(model)
    found = unitvar.bn_statistics(model, loader)
    found.save(path)
    unitvar.BatchNormStatistics.load(path).apply_(model)
"""


def test_no_call_warns_on_a_plain_model() -> None:
    run = subprocess.run([sys.executable, "-W", "error", "-c", CALLS], capture_output=True, text=True, timeout=300)
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")
