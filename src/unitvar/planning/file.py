"""A plan in a JSON file."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar

from unitvar.init import MODES
from unitvar.planning.layers import LayerPlan, Layout, Plan
from unitvar.planning.options import DISTRIBUTIONS
from unitvar.running.files import written_whole

__all__ = ["load", "save"]

FORMAT = "unitvar.plan"
VERSION = 1

Part = TypeVar("Part")


def save(plan: Plan, path: str | PathLike[str]) -> None:
    """Write a plan to a file, whole or not at all."""
    record = {"format": FORMAT, "version": VERSION, **asdict(plan)}
    text = json.dumps(_plain(record), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    with written_whole(path) as part:
        part.write_text(text, encoding="utf-8")


def load(path: str | PathLike[str]) -> Plan:
    """Read such a file, or say what is wrong with it."""
    try:
        record = json.loads(Path(path).read_text(encoding="utf-8"))
        if not isinstance(record, dict) or record.get("format") != FORMAT:
            raise ValueError(f"its 'format' is not {FORMAT!r}")
        if record.get("version") != VERSION:
            raise ValueError(f"its version is {record.get('version')!r}, but this release reads version {VERSION}")
        made = _plan(record)
        _check(made)
        return made
    except (ValueError, RecursionError) as error:  # JSON and UTF-8 errors are such, too
        raise ValueError(
            f"{os.fspath(path)!r} cannot be read as a plan: {error}. Write it again with plan.save(path)."
        ) from error


def _plain(value: Any) -> Any:
    """Turn what a plan holds into what strict JSON can hold, which has no NaN."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _plan(record: dict[str, Any]) -> Plan:
    return _made(Plan, record, "the plan", {
        "layers": _several(_layer), "skipped": _mapping(_text), "unsupported": _mapping(_count), "chi": _number,
        "depth": _count, "mode": _text, "distribution": _text, "inputs": _text, "gain": _number,
        "advice": _several(_text), "shifts": _mapping(_number), "parameters": _mapping(_several(_count)),
    })  # fmt: skip


def _layer(value: Any) -> LayerPlan:
    return _made(LayerPlan, value, "a layer", {
        "name": _text, "op": _text, "shape": _several(_count), "fan_in": _number, "fan_out": _number, "mean": _number,
        "second": _number, "path": _text, "scale": _number, "predicted": _number, "biases": _several(_text),
        "note": _text, "branch": _text, "signal": _number, "noise": _number, "layout": _layout,
    })  # fmt: skip


def _layout(value: Any) -> Layout:
    readers = {"columns": _several(_count), "batch": _several(_count), "fill": _fill, "zero": _several(_count)}
    return _made(Layout, value, "a layout", readers)


def _fill(value: Any) -> dict[str, Any]:
    readers = {"transposed": _flag, "groups": _count, "stride": _stride}
    if not isinstance(value, dict) or not value.keys() <= readers.keys():
        raise ValueError(f"{value!r} is not a mapping with the keys {', '.join(readers)}")
    return {key: readers[key](item) for key, item in value.items()}


def _stride(value: Any) -> int | tuple[int, ...]:
    return _several(_count)(value) if isinstance(value, list) else _count(value)


def _made(kind: Callable[..., Part], value: Any, where: str, readers: dict[str, Callable[[Any], Any]]) -> Part:
    """Make a record of what a mapping holds under the names of its fields; each has its reader."""
    assert readers.keys() == kind.__dataclass_fields__.keys()  # type: ignore[attr-defined]
    if not isinstance(value, dict):
        raise ValueError(f"{where} is {value!r}, not a mapping")
    missing = [name for name in readers if name not in value]
    if missing:
        raise ValueError(f"{where} has no {', '.join(map(repr, missing))}")
    made = {}
    for name, read in readers.items():
        try:
            made[name] = read(value[name])
        except ValueError as error:
            label = value.get("name")
            raise ValueError(f"{name!r}{f' of {label!r}' if isinstance(label, str) else ''}: {error}") from None
    return kind(**made)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is not a string")
    return value


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{value!r} is not true or false")
    return value


def _count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"{value!r} is not a whole number ≥ 0")
    return value


def _number(value: Any) -> float:
    if value in ("nan", "inf", "-inf"):
        return float(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"{value!r} is not a number")
    if abs(value) > sys.float_info.max:
        raise ValueError("it is too large for a float")
    return value


def _several(read: Callable[[Any], Part]) -> Callable[[Any], tuple[Part, ...]]:
    def several(value: Any) -> tuple[Part, ...]:
        if not isinstance(value, list):
            raise ValueError(f"{value!r} is not a list")
        return tuple(map(read, value))

    return several


def _mapping(read: Callable[[Any], Part]) -> Callable[[Any], dict[str, Part]]:
    def mapping(value: Any) -> dict[str, Part]:
        if not isinstance(value, dict):
            raise ValueError(f"{value!r} is not a mapping")
        return {key: read(item) for key, item in value.items()}

    return mapping


def _check(plan: Plan) -> None:
    """Refuse what no plan can be, before it reaches a model."""
    for name, value, allowed in (("mode", plan.mode, MODES), ("distribution", plan.distribution, DISTRIBUTIONS)):
        if value not in allowed:
            raise ValueError(f"{name}={value!r} is not one of {', '.join(map(repr, allowed))}")
    for layer in plan.layers:
        dims = range(len(layer.shape))
        if plan.parameters.get(layer.name) != layer.shape:
            raise ValueError(f"{layer.name!r} of shape {layer.shape} is not among its 'parameters'")
        if not all(bias in plan.parameters for bias in layer.biases):
            raise ValueError(f"a bias of {layer.name!r} is not among its 'parameters'")
        if not all(d in dims for d in (*layer.layout.columns, *layer.layout.batch)):
            raise ValueError(f"the layout of {layer.name!r} does not fit its shape {layer.shape}")
        if not all(row < layer.shape[0] for row in layer.layout.zero):
            raise ValueError(f"a zero row of {layer.name!r} is out of range")
        if not 0 <= layer.scale < math.inf:
            raise ValueError(f"the scale of {layer.name!r} is {layer.scale}, not a finite number ≥ 0")
