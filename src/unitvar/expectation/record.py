"""Recording a model in evaluation mode with its dropouts on."""

from __future__ import annotations

import random
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from unitvar._torch import AnyBatchNorm, schema_of, tree_flatten, tree_unflatten
from unitvar.expectation.ops import find
from unitvar.graph import Graph, Node, Op, trace

__all__ = ["PREFIX", "TENSOR", "Recording", "noisy", "place", "record", "static", "stochastic_modules"]

PREFIX = "model"
TENSOR = object()  # None may be a result, too


@dataclass
class Recording:
    """One run of a model: its graph, and how its result is put together.

    Attributes:
        graph: the ops.
        spec: the structure of the result.
        leaves: its leaves; TENSOR for each tensor.
        drew: whether the run asked Python's random numbers, which no graph shows.
    """

    graph: Graph = field(default_factory=Graph)
    spec: Any = None
    leaves: tuple[Any, ...] = ()
    drew: bool = False


class _Selected(nn.Module):
    """Run a model with some of its modules in training mode, and return the tensors of its result as a list."""

    def __init__(
        self, model: nn.Module, spec: Any, fixed: list[Any], training: frozenset[str] | None, seed: int | None
    ) -> None:
        super().__init__()
        self.model, self.seed = model, seed
        self.spec, self.fixed, self.chosen = spec, fixed, training
        self.found = Recording()

    def forward(self, *tensors: Tensor) -> list[Tensor]:
        remaining = iter(tensors)
        args, kwargs = tree_unflatten([next(remaining) if isinstance(a, Tensor) else a for a in self.fixed], self.spec)
        if self.seed is not None:
            random.seed(self.seed)  # the state comes back after the recording
        before = random.getstate()
        with ExitStack() as stack:
            for name, module in self.model.named_modules():
                if _trains(module) if self.chosen is None else name in self.chosen:
                    stack.enter_context(_Training(module))
            result = self.model(*args, **kwargs)
        found = self.found
        leaves, found.spec = tree_flatten(result)
        found.leaves = tuple(TENSOR if isinstance(leaf, Tensor) else leaf for leaf in leaves)
        found.drew = random.getstate() != before
        return [leaf for leaf in leaves if isinstance(leaf, Tensor)]


def _trains(module: nn.Module) -> bool:
    """Return True if a module may draw random numbers: a batch norm never does, and in training refuses single values.

    A frozen TorchScript module has no flag.
    """
    return hasattr(module, "training") and not isinstance(module, AnyBatchNorm)


class _Training:
    """Set one module's own flag for a while."""

    def __init__(self, module: nn.Module) -> None:
        self.module, self.before = module, module.training

    def __enter__(self) -> None:
        self.module.training = True

    def __exit__(self, *_: object) -> None:
        self.module.training = self.before


def record(
    model: nn.Module, leaves: list[Any], spec: Any, training: frozenset[str] | None, seed: int | None = None
) -> Recording:
    """Record a run on these arguments, with the named modules in training mode; if None, with all but batch norms."""
    wrapper = _Selected(model, spec, leaves, training, seed)
    tensors = tuple(leaf.detach() for leaf in leaves if isinstance(leaf, Tensor))
    graph = trace(wrapper, tensors, training=False, known=_known)
    wrapper.found.graph = graph
    return wrapper.found


def _known(op: Op) -> bool:
    return op.views or op.pointwise or op.random or find(op.name, op.overload) is not None


def static(node: Node) -> tuple[Any, ...]:
    """Return the arguments of a call without the defaults at its end."""
    args, declared = list(node.args), schema_of(node.op.func).arguments
    while args and len(args) <= len(declared) and _is_default(args[-1], declared[len(args) - 1]):
        args.pop()
    return tuple(args)


def _is_default(arg: Any, declared: Any) -> bool:
    return bool(declared.has_default_value()) and _same(arg, declared.default_value)


def _same(a: Any, b: Any) -> bool:
    return a is b or (type(a) is type(b) and isinstance(a, (int, float, str, bool)) and a == b)


def place(node: Node) -> str:
    """Return the path of the module that an op ran in."""
    return node.path.removeprefix(PREFIX).removeprefix(".") or "the model"


def noisy(node: Node) -> bool:
    """Return True if a call draws random numbers."""
    rule = find(node.name, node.op.overload)
    if rule is not None and rule.noise is not None:
        return rule.noise(*static(node))
    return node.op.random


def stochastic_modules(model: nn.Module, leaves: list[Any], spec: Any) -> frozenset[str]:
    """Name the modules that draw random numbers when they train.

    Only these run in training mode. A batch norm, an auxiliary head or a cache then does what it does in evaluation.
    """
    found = record(model, leaves, spec, None)
    check_same_ops(model, leaves, spec, None, found)
    paths = {node.path.removeprefix(PREFIX).removeprefix(".") for node in found.graph.nodes if noisy(node)}
    modules = dict(model.named_modules())
    found.graph.release()
    return frozenset(p for p in paths if p in modules and _trains(modules[p]))


_TRIES = 8


def check_same_ops(
    model: nn.Module, leaves: list[Any], spec: Any, training: frozenset[str] | None, found: Recording
) -> None:
    """Refuse a model that decides by Python's random numbers what it computes.

    That it draws such numbers does not tell: loggers and type checkers do, too. Runs that differ do.
    """
    if not found.drew:
        return
    ops = [node.name for node in found.graph.nodes]
    for seed in range(_TRIES):
        other = record(model, leaves, spec, training, seed).graph
        if [node.name for node in other.nodes] != ops:
            break
        other.release()
    else:
        return
    raise ValueError(
        "The model draws from Python's random module in training mode, as LayerDrop does, so what it computes differs "
        "from run to run and cannot be integrated out. Set that rate to zero, or average sampled runs."
    )
