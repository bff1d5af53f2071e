"""Loggers, the real ones: what was watched comes out again, at the step where it was watched."""

import json
import struct
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

import unitvar
from unitvar.integrations import loggers

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # other people's deprecations at import
    from lightning.pytorch.loggers import CSVLogger


class Twice(nn.Module):
    """A weight that is used twice: its second use has a name of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(self.linear(x).relu())


def train(writer: object) -> unitvar.History:
    torch.manual_seed(0)
    model = Twice()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with unitvar.watch(model, every=2, writer=writer) as history:
        for _ in range(4):
            optimizer.zero_grad()
            model(torch.randn(8, 4)).square().mean().backward()
            optimizer.step()
    return history


def expected(history: unitvar.History, what: str, use: int = 1) -> list[tuple[int, object]]:
    return [(row["step"], pytest.approx(row[what], rel=1e-6)) for row in history.rows if row["use"] == use]


def test_weights_and_biases_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_SILENT", "true")
    import wandb

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run = wandb.init(mode="offline", dir=tmp_path, project="unitvar", settings=wandb.Settings(console="off"))
        run.log({"loss": 1.0}, step=100)  # further than any step of ours: W&B would drop what has an earlier one
        history = train(loggers.wandb(run))
        run.finish()
        wandb.teardown()  # finish() leaves its service to write the file; this waits for it
    rows = list(_offline_history(next(Path(tmp_path).rglob("*.wandb"))))
    found = [(int(r["unitvar/step"]), r["unitvar/update_ratio/linear.weight"]) for r in rows if "unitvar/step" in r]
    assert found == expected(history, "update_ratio")
    second = [r["unitvar/variance/linear.weight #2"] for r in rows if "unitvar/step" in r]
    assert second == [value for _, value in expected(history, "variance", use=2)]


def _offline_history(path: Path) -> Iterator[dict[str, float]]:
    """Read the rows back from the file that an offline run leaves: protocol buffers in LevelDB's log format."""
    from wandb.proto import wandb_internal_pb2

    data, place, parts = path.read_bytes(), 7, b""  # after the file's own header
    while place + 7 <= len(data):
        left = 32768 - place % 32768  # in this block
        if left < 7:
            place += left
            continue
        length, kind = struct.unpack_from("<HB", data, place + 4)
        parts += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # whole, or the last part
            record = wandb_internal_pb2.Record()
            record.ParseFromString(parts)
            parts = b""
            if record.WhichOneof("record_type") == "history":
                items = record.history.item
                yield {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}


def test_mlflow_in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # no database is at hand
    import mlflow

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        mlflow.set_tracking_uri((tmp_path / "runs").as_uri())
        with mlflow.start_run() as run:
            history = train(loggers.mlflow(mlflow))
        client = mlflow.tracking.MlflowClient()
        for name, use, what in (("linear.weight", 1, "update_ratio"), ("linear.weight _2", 2, "variance")):
            found = client.get_metric_history(run.info.run_id, f"unitvar/{what}/{name}")
            assert [(metric.step, metric.value) for metric in found] == expected(history, what, use)


def test_a_logger_of_lightning(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logger = CSVLogger(tmp_path)
        history = train(loggers.lightning(logger))
        logger.save()
    found = [(m["step"], m["unitvar/update_ratio/linear.weight"]) for m in logger.experiment.metrics]
    found = found or _read(Path(logger.log_dir) / "metrics.csv")
    assert found == expected(history, "update_ratio")


def _read(path: Path) -> list[tuple[int, float]]:
    import csv

    with path.open(encoding="utf-8") as file:
        rows = csv.DictReader(file)
        return [(int(row["step"]), float(row["unitvar/update_ratio/linear.weight"])) for row in rows]
