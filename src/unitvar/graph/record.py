"""The recorder: a dispatch mode that sees every op of a run and writes it down."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from unitvar._torch import FakeTensor, FakeTensorMode, TorchDispatchMode, decomposable, storage_of
from unitvar.graph.graph import Graph, Node, Value
from unitvar.graph.op import Op, op_of, tensors_in
from unitvar.running.calling import flattened
from unitvar.running.tracker import ParameterTracker

__all__ = ["MERGE", "Recorder"]

MERGE = "unitvar.merge"
# Frequent ops whose output has the shape of their first argument: known without asking.
_LIKE_FIRST = {"aten.batch_norm", "aten.dropout", "aten.relu"}
_LARGEST = 1 << 22  # elements of a storage up to which the overlap of two views is counted exactly


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Write down what runs.

    What depends on no parameter, buffer or input is computed as it is and becomes a constant; with ``fake``, all else
    is computed on stand-ins without data. Nothing that existed before the run is ever written to in that case.

    Args:
        owned: parameters and buffers, by identity.
        path: says which module is running.
        known: whether an op needs no decomposition.
        fake: the mode that makes stand-ins, or None to use real tensors; "meta" for models on the meta device.
    """

    def __init__(
        self,
        owned: dict[int, tuple[Tensor, Value]],
        path: Callable[[], str],
        known: Callable[[Op], bool],
        fake: FakeTensorMode | str | None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.graph = Graph(real=fake is None)
        self.graph.parameters = {v.name: v for _, v in owned.values() if v.kind == "parameter"}
        self.path, self.known, self.fake = path, known, fake
        # Tensors are kept alive, so that an id stays theirs.
        self.bound: dict[int, tuple[Tensor, Value, int]] = {i: (t, v, 0) for i, (t, v) in owned.items()}
        self.stand_ins: dict[int, tuple[Tensor, Tensor]] = {}
        self.writes: dict[int, list[tuple[int, Value, Tensor]]] = {}
        self.real: dict[int, int] = {}  # storage of a stand-in → storage of what it stands for
        self.merged: dict[int, tuple[int, Value]] = {}
        self.made: dict[Any, Tensor] = {}  # what an op made of arguments that look so: networks repeat their layers
        self.clock = 0
        self.tracker = ParameterTracker((v.name, t) for t, v in owned.values() if v.kind == "parameter")

    def input(self, tensor: Tensor, name: str) -> Tensor:
        """Make a tensor an input of the graph; return what to feed the model instead of it."""
        value = Value("input", tensor, name=name)
        value.tensor = tensor
        self.graph.inputs.append(value)
        self.bound[id(tensor)] = (tensor, value, 0)
        if self.fake is not None:
            return self._stand_in(tensor)
        with torch.inference_mode(False):  # a copy: a model may write to its input
            fed = tensor.detach().clone().requires_grad_(tensor.requires_grad)
        self.bound[id(fed)] = (fed, value, 0)
        return fed

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run an op and record it."""
        kwargs = kwargs or {}
        op = op_of(func)
        tensors = list(tensors_in(args))
        if kwargs:
            tensors += tensors_in(kwargs.values())
        if not op.random and not any(self._tracked(t) for t in tensors):
            if self.fake == "meta":  # a model without data still computes with numbers, such as positions
                args, kwargs = _with_data(args), {k: _with_data(v) for k, v in kwargs.items()}
            return func(*args, **kwargs)  # a constant
        if op.inquiry or op.name.startswith("prim."):  # ``x.device`` and the like
            return self._run(func, args, kwargs, tensors)
        if not self.known(op) and decomposable(func):
            with self:
                out = func.decompose(*args, **kwargs)
            if out is not NotImplemented:
                self.graph.decomposed[op.name] += 1
                self.graph.where.setdefault(op.name, self.path())
                return out
        bound = op.bind(args, kwargs)
        node = Node(op, tuple(self._named(a) for a in bound), self.path())
        out = self._run(func, args, kwargs, tensors)
        # An out= op hands back its target, an in-place op its own argument: those are rebound below.
        outs = [out] if isinstance(out, Tensor) else [o for o in flattened(out) if isinstance(o, Tensor)]
        self.graph.nodes.append(node)
        kind = "activation"
        if not op.random and all(v.kind in ("parameter", "derived", "constant", "buffer") for v in node.inputs):
            kind = "derived" if any(v.kind in ("parameter", "derived") for v in node.inputs) else "buffer"
        if op.written:
            targets = [t for i in op.written for t in tensors_in((bound[i],))]
            node.outputs = tuple(self._write(t, kind, node) for t in targets)
            for tensor, value in zip(outs, node.outputs, strict=False):
                self.bound[id(tensor)] = (tensor, value, self.clock)  # type: ignore[assignment]
            return out
        node.outputs = tuple(self._bind(t, Value(kind, t, node=node)) for t in outs)
        return out

    def _tracked(self, tensor: Tensor) -> bool:
        return id(tensor) in self.bound or isinstance(tensor, FakeTensor) or (
            bool(self.writes) and self._key(tensor) in self.writes
        )  # fmt: skip

    def _run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], tensors: list[Tensor]) -> Any:
        if self.fake is None or not any(self._abstract(t) for t in tensors):
            return func(*args, **kwargs)
        op = op_of(func)
        if op.in_place:  # without data there is nothing to write
            return args[0]
        if op.name in _LIKE_FIRST and self.fake != "meta" and isinstance(args[0], FakeTensor) and _fits(args):
            return self._fake_like(args[0])
        args = tuple(self._replaced(a) for a in args)
        kwargs = {k: self._replaced(v) for k, v in kwargs.items()}
        if self.fake == "meta":
            if "device" in kwargs:
                kwargs["device"] = torch.device("meta")
            return func(*args, **kwargs)
        if op.views or op.random or op.written or kwargs:
            with self.fake:  # type: ignore[union-attr]
                if op.views and not any(t.is_inference() for t in tensors):
                    # A view of a parameter must be a normal tensor, as the parameter is.
                    with torch.inference_mode(False), torch.no_grad():
                        return func(*args, **kwargs)
                return func(*args, **kwargs)
        key = func, _look(args)
        if key in self.made:
            return self._fake_like(self.made[key])
        with self.fake:  # type: ignore[union-attr]
            out = func(*args)
        if type(out) is FakeTensor and storage_of(out) not in {storage_of(t) for t in tensors_in(args)}:
            self.made[key] = out
        return out

    def _abstract(self, tensor: Tensor) -> bool:
        """Return True for a stand-in and for what needs one; False for noise, so that its ``.item()`` works."""
        if isinstance(tensor, FakeTensor) or tensor.is_meta:
            return True
        entry = self.bound.get(id(tensor))
        return entry is not None and entry[1].kind != "activation"

    def _replaced(self, arg: Any) -> Any:
        if isinstance(arg, Tensor):
            return self._stand_in(arg)
        if isinstance(arg, (list, tuple)):
            return type(arg)(self._replaced(a) for a in arg)
        return arg

    def _stand_in(self, tensor: Tensor) -> Tensor:
        if isinstance(tensor, FakeTensor):
            return tensor
        found = self.stand_ins.get(id(tensor))
        if found is None:
            if self.fake == "meta":
                if tensor.is_meta:
                    return tensor
                fake = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
            else:
                with torch.inference_mode(False):
                    fake = self._fake_like(tensor)
            found = self.stand_ins[id(tensor)] = tensor, fake
            self.real[storage_of(fake)] = storage_of(tensor)
            entry = self.bound.get(id(tensor))
            if entry is not None:
                self.bound[id(fake)] = (fake, entry[1], entry[2])
                if entry[1].kind == "parameter":
                    self.tracker.own(fake, entry[1].name)
        return found[1]

    def _fake_like(self, tensor: Tensor) -> Tensor:
        empty = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
        return FakeTensor(self.fake, empty, tensor.device)

    def _named(self, arg: Any) -> Any:
        if isinstance(arg, Tensor):
            return self._read(arg)
        if isinstance(arg, (list, tuple)):
            return tuple(self._named(a) for a in arg)
        return arg

    def _read(self, tensor: Tensor) -> Value:
        entry = self.bound.get(id(tensor))
        if entry is None:
            value = Value("constant", tensor)
            value.tensor = None if isinstance(tensor, FakeTensor) or tensor.is_meta else tensor
            entry = tensor, value, 0
            self.bound[id(tensor)] = entry
        if not self.writes:
            return entry[1]
        later = [w for w in self.writes.get(self._key(tensor), ()) if w[0] > entry[2] and w[2] is not tensor]
        if not later:
            return entry[1]
        # Another view of the same storage was written to: what is read is a mixture of all that was written since.
        merged = self.merged.get(id(tensor))
        if merged is not None and merged[0] == later[-1][0]:
            return merged[1]
        shares = _shares(tensor, [written for _, _, written in later])
        if not any(shares):
            return entry[1]
        boxes = tuple(_box(tensor, written) for _, _, written in later)
        args = (entry[1], tuple(v for _, v, _ in later), shares, boxes)
        node = Node(_MERGE_OP, args, self.path())
        value = Value("activation", tensor, node=node)
        node.outputs = (value,)
        self.graph.nodes.append(node)
        self.merged[id(tensor)] = later[-1][0], value
        return value

    def _key(self, tensor: Tensor) -> int:
        storage = storage_of(tensor)
        return self.real.get(storage, storage)

    def _write(self, tensor: Tensor, kind: str, node: Node) -> Value:
        self.clock += 1
        value = Value(kind, tensor, node=node)
        self.bound[id(tensor)] = (tensor, value, self.clock)
        stand_in = self.stand_ins.get(id(tensor))
        if stand_in is not None:
            self.bound[id(stand_in[1])] = (stand_in[1], value, self.clock)
        self.writes.setdefault(self._key(tensor), []).append((self.clock, value, tensor))
        return value

    def _bind(self, tensor: Tensor, value: Value) -> Value:
        if value.kind == "derived":
            view = self.tracker.view(tensor)
            if view is not None:
                value.parameter = self.graph.parameters[view.name]
                value.layout = view.size, view.stride, view.offset
        entry = self.bound.get(id(tensor))
        if entry is None:
            self.bound[id(tensor)] = (tensor, value, self.clock)
        else:  # the op handed back its argument (``x.to(x.dtype)``): it stays what it was
            self.bound[id(tensor)] = (tensor, value, entry[2])
        return value

    def outputs(self, result: Any) -> None:
        """Note what the model returned."""
        tensors = [t for t in flattened(result) if isinstance(t, Tensor)]
        self.graph.outputs = [self.bound[id(t)][1] for t in tensors if id(t) in self.bound]
        self.graph.returned = [self._read(t) for t in tensors]


def _with_data(arg: Any) -> Any:
    """Put the CPU in the place of the meta device."""
    if isinstance(arg, torch.device) and arg.type == "meta":
        return torch.device("cpu")
    return tuple(_with_data(a) for a in arg) if type(arg) is tuple else arg


def _look(arg: Any) -> Any:
    """Describe arguments by all that the look of an op's result depends on."""
    if isinstance(arg, Tensor):
        return arg.shape, arg.stride(), arg.dtype, arg.device
    return tuple(map(_look, arg)) if isinstance(arg, (list, tuple)) else (type(arg), arg)  # 1 == 1.0 == True


def _fits(args: tuple[Any, ...]) -> bool:
    """Return True if a batch norm has a scale for each channel; otherwise it is run, and raises."""
    weight = args[1] if len(args) > 1 else None
    return not isinstance(weight, Tensor) or weight.shape[0] == args[0].shape[1]


def _merge(self: Tensor, written: Tensor) -> Tensor:
    raise NotImplementedError  # never run: it only stands in a graph


_MERGE_OP = Op(_merge, MERGE, ("self", "written", "shares", "boxes"), (None, None, None, None), (), False, False, False)


def _box(read: Tensor, written: Tensor) -> tuple[tuple[int, int], ...] | None:
    """Return from where to where, along each dimension of what is read, a write went; None if it is no box of it."""
    if written.dim() != read.dim() or written.stride() != read.stride():
        return None
    offset = int(written.storage_offset()) - int(read.storage_offset())
    strides = [int(stride) for stride in read.stride()]
    starts = [0] * read.dim()
    for d in sorted(range(read.dim()), key=lambda d: -strides[d]):
        if read.shape[d] > 1:
            starts[d], offset = divmod(offset, strides[d])
    ends = [start + n for start, n in zip(starts, written.shape, strict=True)]
    inside = all(start >= 0 and end <= n for start, end, n in zip(starts, ends, read.shape, strict=True))
    return tuple(zip(starts, ends, strict=True)) if inside and offset == 0 else None


def _shares(read: Tensor, written: list[Tensor]) -> tuple[float, ...]:
    """Return which share of what is read each write has left its value in: the last one wins."""
    end = max(_end(t) for t in (read, *written))
    if end > _LARGEST or not read.numel():
        left, shares = 1.0, []
        for t in reversed(written):
            shares.append(min(left, t.numel() / max(1, read.numel())))
            left -= shares[-1]
        return tuple(reversed(shares))
    writer = torch.zeros(end, dtype=torch.int32, device="cpu")
    for i, t in enumerate(written):
        writer.as_strided(t.shape, t.stride(), int(t.storage_offset())).fill_(i + 1)
    seen = writer.as_strided(read.shape, read.stride(), int(read.storage_offset())).flatten()
    counts = torch.bincount(seen, minlength=len(written) + 1)[1:]
    return tuple((counts.double() / seen.numel()).tolist())


def _end(tensor: Tensor) -> int:
    reach = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True) if n)
    return int(tensor.storage_offset()) + reach + 1
