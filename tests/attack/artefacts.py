"""Hostile files of the library's own: BatchNorm statistics in safetensors, plans in JSON."""

import json
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

import unitvar
from tests.attack.case import Case

__all__ = ["PLANS", "STATISTICS", "artefacts"]

BATCHES = list(torch.randn(3, 8, 4, generator=torch.Generator().manual_seed(0)))


def _model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))


Spoil = Callable[[bytes], bytes]

# Whatever the format: bytes that are no such file.
COMMON: dict[str, Spoil] = {
    "empty": lambda _: b"",
    "truncated in the header": lambda whole: whole[:40],
    "truncated by one byte": lambda whole: whole.rstrip()[:-1],
    "a page of a proxy": lambda _: b"<html>Not found</html>" * 20,
    "a pickle": lambda _: b"\x80\x04\x95\x1d\x00\x00\x00\x00\x00\x00\x00\x8c\x02os\x8c\x06system\x93\x8c\x04true\x85R.",
    "zeros": lambda whole: bytes(len(whole)),
    "not UTF-8": lambda whole: b"\xff\xfe" + whole,
}


def _header(whole: bytes) -> tuple[dict[str, Any], bytes]:
    size = int.from_bytes(whole[:8], "little")
    return json.loads(whole[8 : 8 + size]), whole[8 + size :]


def _packed(header: object, body: bytes) -> bytes:
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + body


def _record(change: Callable[[dict[str, Any]], object]) -> Spoil:
    """Spoil the JSON record in the metadata of a file of statistics."""

    def spoil(whole: bytes) -> bytes:
        header, body = _header(whole)
        record = json.loads(header["__metadata__"]["unitvar.bn_statistics"])
        made = change(record)
        text = made if isinstance(made, str) else json.dumps(record)
        header["__metadata__"]["unitvar.bn_statistics"] = text
        return _packed(header, body)

    return spoil


def _tensors(change: Callable[[dict[str, Any]], object]) -> Spoil:
    """Spoil what the header says of the tensors."""

    def spoil(whole: bytes) -> bytes:
        header, body = _header(whole)
        change(header)
        return _packed(header, body)

    return spoil


def _numbers(value: float) -> Spoil:
    """Put a number in place of all others."""

    def spoil(whole: bytes) -> bytes:
        header, body = _header(whole)
        return _packed(header, bytes(torch.full((len(body) // 8,), value, dtype=torch.float64).numpy().tobytes()))

    return spoil


STATISTICS: dict[str, Spoil] = {
    **COMMON,
    "an oversized header": lambda whole: (1 << 62).to_bytes(8, "little") + whole[8:],
    "a negative header": lambda whole: (-1 & (1 << 64) - 1).to_bytes(8, "little") + whole[8:],
    "a header without end": lambda whole: b"\x00\x00\x00\x01\x00\x00\x00\x00" + b"[" * (1 << 24),
    "negative sizes": _tensors(lambda header: header["1.mean"].update(shape=[-4])),
    "sizes past the end": _tensors(lambda header: header["1.mean"].update(shape=[1 << 40])),
    "offsets past the end": _tensors(lambda header: header["1.mean"].update(data_offsets=[0, 1 << 40])),
    "another dtype": _tensors(lambda header: header["1.mean"].update(dtype="I64")),
    "another shape": _tensors(lambda header: header["1.mean"].update(shape=[2, 2])),
    "products of another shape": _tensors(lambda header: header["1.products"].update(shape=[9, 4])),
    "a tensor that is missing": _tensors(lambda header: header.__setitem__("2.mean", header.pop("1.mean"))),
    "no metadata": _tensors(lambda header: header.pop("__metadata__")),
    "NaN": _numbers(torch.nan),
    "infinity": _numbers(torch.inf),
    "negative variances": _numbers(-1.0),
    "a record that is no JSON": _record(lambda record: "{"),
    "a record that is a list": _record(lambda record: "[]"),
    "a record nested without end": _record(lambda record: "[" * 100_000),
    "a record of another version": _record(lambda record: record.update(version=99)),
    "layers that are missing": _record(lambda record: record.pop("layers")),
    "layers that are no list": _record(lambda record: record.update(layers={"1": 2})),
    "a layer twice": _record(lambda record: record.update(layers=record["layers"] * 2)),
    "a layer without a count": _record(lambda record: record["layers"][0].pop("values")),
    "a count in words": _record(lambda record: record["layers"][0].update(values="24")),
    "a negative count": _record(lambda record: record["layers"][0].update(values=-24)),
    "a count that is a truth value": _record(lambda record: record["layers"][0].update(batches=True)),
    "a count past all numbers": _record(lambda record: record["layers"][0].update(values=10**400)),
    "fewer values than examples": _record(lambda record: record["layers"][0].update(values=3)),
    "another method": _record(lambda record: record.update(method="rm -rf")),
    "other stats": _record(lambda record: record.update(stats=["both"])),
    "kept layers that are no mapping": _record(lambda record: record.update(kept=["1"])),
    "batches that are no number": _record(lambda record: record.update(batches=None)),
}


def _field(change: Callable[[dict[str, Any]], object]) -> Spoil:
    def spoil(whole: bytes) -> bytes:
        record = json.loads(whole)
        change(record)
        return json.dumps(record).encode()

    return spoil


PLANS: dict[str, Spoil] = {
    **COMMON,
    "a list": lambda _: b"[]",
    "nested without end": lambda _: b"[" * 100_000,
    "nested in a field": lambda whole: whole.replace(b'"skipped": {', b'"skipped": {"a": ' + b"[" * 100_000, 1),
    "a number of 10,000 digits": lambda whole: whole.replace(b'"scale": ', b'"scale": ' + b"9" * 10_000, 1),
    "a number past all floats": _field(lambda record: record["layers"][0].update(scale=10**400)),
    "a negative size": _field(lambda record: record["layers"][0].update(shape=[-4, 4])),
    "a negative scale": _field(lambda record: record["layers"][0].update(scale=-1.0)),
    "NaN as a scale": _field(lambda record: record["layers"][0].update(scale=float("nan"))),
    "another version": _field(lambda record: record.update(version=99)),
    "a layer that is missing a field": _field(lambda record: record["layers"][0].pop("scale")),
    "a name that is a number": _field(lambda record: record["layers"][0].update(name=3)),
    "a layer without its parameter": _field(lambda record: record.update(parameters={})),
    "a fill that names code": _field(lambda record: record["layers"][0]["layout"].update(fill={"__class__": "os"})),
}


def _refused(name: str, load: Callable[[Path], object], path: Path) -> Case:
    """A hostile file is a ValueError that names the file and says how to make a good one."""
    try:
        load(path)
    except ValueError as error:
        told = str(error)
        return Case(name, path.name in told and "save(path)" in told, told[-160:])
    except BaseException as error:
        return Case(name, False, f"{type(error).__name__}: {error}"[:160])
    return Case(name, False, "accepted")


def artefacts() -> Iterator[Case]:
    """Load statistics and plans from files that were spoilt in every way."""
    made = (
        ("statistics", unitvar.bn_statistics(_model(), BATCHES), unitvar.BatchNormStatistics.load, STATISTICS),
        ("plan", unitvar.plan(_model(), BATCHES[0]), unitvar.Plan.load, PLANS),
    )
    for kind, saved, load, spoils in made:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / f"{kind}.file"
            saved.save(path)  # type: ignore[attr-defined]
            whole = path.read_bytes()
            for name, spoil in spoils.items():
                path.write_bytes(spoil(whole))
                yield _refused(f"{kind}: {name}", load, path)
            path.write_bytes(whole)
            load(path)  # the file itself is good
