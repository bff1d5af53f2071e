"""Moments through a graph, op by op, in the order of the run."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from unitvar.propagate.grid import Axis, Field, bernoulli, constant, empirical, uniform
from unitvar.propagate.pointwise import evaluate, multiplied
from unitvar.propagate.sample import sampled, sampled_backward
from unitvar.propagate.state import State
from unitvar.propagate.uses import Use, followed
from unitvar.rules import Moments, Rule
from unitvar.rules.noise import DROPOUTS, NOISE
from unitvar.rules.registry import find
from unitvar.rules.shapes import PICK, SAME, features_after, merge
from unitvar.trace import Graph, Node, Op, Value
from unitvar.trace.record import MERGE

__all__ = ["Propagation", "Weighing", "known", "propagate"]

_MASKED = -1e4  # a score this low is one that a mask has taken out
_LEVELS = {
    "aten.zeros_like": 0.0, "aten.new_zeros": 0.0, "aten.zero": 0.0, "aten.new_empty": 0.0, "aten.empty_like": 0.0,
    "aten.new_empty_strided": 0.0, "aten.ones_like": 1.0, "aten.new_ones": 1.0,
}  # fmt: skip
_FILLS = {"aten.full_like": 1, "aten.new_full": 2, "aten.fill": 1}


@dataclass(frozen=True, slots=True)
class Weighing:
    """What a solver is told of a use: all it needs to choose a scale.

    Attributes:
        use: the weight.
        x: the state that reaches it.
        forward: E z² that a weight of unit row norm would give.
        backward: E[g_x²] / E[g_z²] that it would give; None unless asked for.
        node: the op.
        share: the part of z's variance that this weight is to make: a half each for input and state of a recurrence.
    """

    use: Use
    x: State
    forward: float
    backward: float | None
    node: Node
    share: float = 1.0


Solver = Callable[[Weighing], float | None]


@dataclass(eq=False, slots=True)
class Propagation:
    """What came out of it.

    ``states`` has the outcome of each value, ``seen`` what used each parameter that is no weight, ``biases`` the
    parameters added to the output of a weight op, by parameter of the weight.
    """

    states: dict[int, State] = field(default_factory=dict)
    seen: dict[str, list[str]] = field(default_factory=dict)
    biases: dict[str, list[str]] = field(default_factory=dict)
    unsupported: Counter[str] = field(default_factory=Counter)
    where: dict[str, str] = field(default_factory=dict)
    longest: tuple[int, float] = (0, 0.0)


def known(op: Op, overrides: Mapping[str, Rule]) -> bool:
    """Say whether an op is understood without taking it apart."""
    name = op.name
    return (
        op.pointwise or name in SAME or name in PICK or name in DROPOUTS or name in NOISE or name in _LEVELS
        or name in _FILLS or name == "aten.copy" or find(name, op.func._overloadname, overrides) is not None
        or name.startswith(("prim.", "unitvar."))
    )  # fmt: skip


def propagate(
    graph: Graph,
    inputs: Sequence[Moments],
    solve: Solver,
    *,
    zeroed: Callable[[str], bool] = lambda name: False,
    overrides: Mapping[str, Rule] | None = None,
    backward: bool = False,
) -> Propagation:
    """Follow the moments from the inputs to the end.

    Args:
        graph: a run.
        inputs: the moments of its inputs.
        solve: chooses the squared row norm of each use of a weight; None leaves the weight's actual values.
        zeroed: whether a bias of this name will be zero.
        overrides: rules of this call.
        backward: whether to follow gradients, too.

    Returns:
        The states of all values, and what was met on the way.
    """
    with torch.inference_mode(False), torch.enable_grad():
        walker = _Walker(graph, solve, zeroed, overrides or {}, backward)
        for value, moments in zip(graph.inputs, inputs, strict=True):
            walker.out.states[id(value)] = State(
                moments.like(shape=value.shape, features=_default_features(value.shape))
            )
        for node in graph.nodes:
            walker.step(node)
        return walker.out


def _default_features(shape: tuple[int, ...]) -> int | None:
    """Images and volumes come with channels second, all else with features last."""
    return 1 if len(shape) in (4, 5) else len(shape) - 1 if shape else None


class _Walker:
    def __init__(self, graph: Graph, solve: Solver, zeroed: Any, overrides: Mapping[str, Rule], backward: bool) -> None:
        self.solve, self.zeroed, self.overrides, self.backward = solve, zeroed, overrides, backward
        self.out = Propagation()
        self.weighed: dict[int, str] = {}  # outputs of weight ops whose weight is chosen
        self.actual: dict[int, Moments] = {}
        self.picks: dict[tuple[Any, ...], list[State]] = {}

    # Reading -------------------------------------------------------------------------------------------------------

    def state(self, value: Value) -> State:
        found = self.out.states.get(id(value))
        if found is None:
            found = self.out.states[id(value)] = self.given(value)
        return found

    def given(self, value: Value) -> State:
        """Describe a value that no op of the graph computed from the inputs."""
        tensor = realised(value)
        shape = value.shape
        if tensor is None or tensor.is_meta:
            ones = value.kind == "parameter" and len(shape) < 2  # of a norm, most likely
            return State(Moments(float(ones), 1.0, shape), shape=shape, features=_default_features(shape))
        if not tensor.numel():
            return State(Moments(0.0, 0.0, shape))
        flat = tensor.detach()
        numbers = flat.double() if flat.numel() <= 1 << 16 else flat
        masked = 0.0
        if numbers.is_floating_point() and value.kind == "constant":
            low = numbers < _MASKED
            if low.any():
                masked = float(low.double().mean())
                numbers = numbers[~low] if masked < 1 else torch.zeros(1, dtype=torch.float64)
        if not numbers.is_floating_point():
            numbers = numbers.double()
        mean = float(numbers.mean())
        second = float(numbers.square().mean())
        spread = second - mean**2
        if spread <= 1e-12 * second:
            state = State(field=constant(mean), shape=shape)
        elif numbers.dim() > 2 and value.kind == "derived":  # embeddings of positions or types
            rows = numbers.double().flatten(0, -2)
            n = rows.shape[0]
            cross = float((rows.sum(0).square() - rows.square().sum(0)).mean()) / (n * (n - 1)) if n > 1 else None
            state = State(Moments(mean, second, shape, cross=cross))
        elif numbers.numel() <= 1 << 16:
            shared = sum(n > 1 for n in shape) <= 1
            axis = empirical(numbers, shared=shared)
            state = State(field=Field(axis.nodes.unsqueeze(-1), (axis,), None), shape=shape)
        else:
            state = State(Moments(mean, second, shape))
        state.masked, state.features, state.depth = masked, _default_features(shape), -1
        return state

    def read(self, arg: Any) -> Any:
        if isinstance(arg, Value):
            return self.state(arg)
        if isinstance(arg, tuple):
            return tuple(self.read(a) for a in arg)
        return arg

    # Stepping ------------------------------------------------------------------------------------------------------

    def step(self, node: Node) -> None:
        if not any(o is not None for o in node.outputs):
            return
        op, name = node.op, node.name
        if all(o is None or o.kind in ("derived", "buffer") for o in node.outputs):
            if "embedding" in name:
                self.note(node)
            return  # parameters' own arithmetic: read when it meets a signal
        rule = find(name, getattr(op.func, "_overloadname", ""), self.overrides)
        overridden = name in self.overrides or f"{name}.{getattr(op.func, '_overloadname', '')}" in self.overrides
        if not overridden and self.special(node):
            return
        if rule is not None and rule.weights:
            self.weigh(node, rule)
            return
        self.note(node)
        if rule is not None:
            self.finish(node, rule, self.apply(rule, node.args))
            return
        if op.pointwise and self.pointwise(node):
            return
        self.unknown(node)

    def note(self, node: Node) -> None:
        for value in node.inputs:
            if value.kind in ("parameter", "derived"):
                parameter = followed(value)
                names = [parameter.name] if parameter is not None else ancestors(value)
                for name in names:
                    self.out.seen.setdefault(name, []).append(node.name)

    def special(self, node: Node) -> bool:
        """Handle ops that need no moments: moving elements, dropping, drawing, filling."""
        name, args = node.name, node.args
        if name == MERGE:
            x, written, shares = self.state(args[0]), [self.state(v) for v in args[1]], args[2]
            if shares[-1] == 1.0:
                self.put(node, [written[-1].moved(args[0].shape, x.features)])
            else:
                moments = merge(x.moments, [w.moments for w in written], shares)
                self.put(node, [State(moments, words=x.words or written[-1].words, depth=x.depth, last=x.last)])
            return True
        if name in SAME or name in PICK:
            tensors = [v for v in node.inputs if v.kind not in ("constant",)] or list(node.inputs)
            x = self.state(tensors[0] if isinstance(args[0], tuple) else args[0])
            same = name in SAME
            self.note(node)
            # The same part taken twice is the same part.
            key = (id(args[0]), name, str(args[1:]))
            if key in self.picks and not any(isinstance(a, Value) for a in args[1:]):
                self.put(node, self.picks[key])
                return True
            made: list[State] = []
            for output in node.outputs:
                if output is None:
                    continue
                old = x.features if x.features is not None else len(x.shape) - 1
                new = features_after(name, args, x.shape, old, output.shape) if x.shape and output.shape else None
                full = same or (output.shape == x.shape and name in ("aten.slice", "aten.narrow"))
                made.append(x.moved(output.shape, new) if full else x.picked(output.shape, new))
            self.put(node, made)
            if not same:
                self.picks[key] = made
            return True
        if name in DROPOUTS:
            x, p, train = self.state(args[0]), float(args[1]), bool(args[2]) if len(args) > 2 else True
            if not train or p == 0:
                self.put(node, [x, State(Moments(1.0, 1.0, x.shape))])
            elif p >= 1:
                self.put(node, [State(field=constant(0.0), shape=x.shape), State(Moments(0.0, 0.0, x.shape))])
            else:
                dropped = multiplied(x, 1 - p, shared=DROPOUTS[name])
                dropped.words = (*x.words, f"{'feature ' if DROPOUTS[name] else ''}dropout {p:g}")
                self.put(node, [dropped, State(Moments(1 - p, 1 - p, x.shape))])
            return True
        if name in NOISE:
            self.put(node, [self.drawn(node, NOISE[name])])
            return True
        if name in _LEVELS:
            self.put(
                node,
                [State(field=constant(_LEVELS[name]), shape=o.shape, depth=-1) for o in node.outputs if o is not None],
            )
            return True
        if name in _FILLS:
            filled = args[_FILLS[name]]
            level = self.state(filled).moments.mean if isinstance(filled, Value) else float(filled)
            if math.isfinite(level):
                self.put(
                    node, [State(field=constant(level), shape=o.shape, depth=-1) for o in node.outputs if o is not None]
                )
                return True
        if name == "aten.copy" and isinstance(args[1], Value):
            x = self.state(args[1])
            self.put(node, [x.moved(o.shape, _aligned(x, o.shape)) for o in node.outputs if o is not None])
            return True
        if name == "aten.masked_fill" and self.mask(node):
            return True
        return name == "aten.where" and len(args) == 3 and self.choice(node)

    def mask(self, node: Node) -> bool:
        """Take scores out: what is left keeps its law, and a softmax learns how few they are."""
        x, mask, filled = (self.state(a) if isinstance(a, Value) else a for a in node.args[:3])
        level = filled.moments.mean if isinstance(filled, State) else float(filled)
        if level > _MASKED:
            return False
        made = x.moved(x.shape, x.features)
        made.masked = max(x.masked, min(1.0, mask.moments.mean))
        self.put(node, [made])
        return True

    def choice(self, node: Node) -> bool:
        mask, a, b = (self.state(v) if isinstance(v, Value) else v for v in node.args)
        for kept, taken, share in ((a, b, 1 - mask.moments.mean), (b, a, mask.moments.mean)):
            level = taken.moments.mean if isinstance(taken, State) else float(taken)
            low = (isinstance(taken, State) and taken.masked == 1.0) or level <= _MASKED
            if low and isinstance(kept, State):
                made = kept.moved(kept.shape, kept.features)
                made.masked = max(kept.masked, share)
                self.put(node, [made])
                return True
        return False

    def drawn(self, node: Node, law: str) -> State:
        output = next(o for o in node.outputs if o is not None)
        numbers = [a for a in node.args if isinstance(a, (int, float)) and not isinstance(a, bool)]
        # Noise with one value for many elements is the same at all positions.
        shared = len(output.shape) > 1 and math.prod(output.shape[2:]) == 1
        axis: Axis
        if law == "bernoulli":
            given = node.args[0] if isinstance(node.args[0], Value) and not numbers else None
            keep = self.state(given).moments.mean if given is not None else float(numbers[0] if numbers else 0.5)
            axis = bernoulli(min(1.0, max(0.0, keep)), shared=shared)
        elif law == "uniform":
            low, high = numbers[:2] if node.name == "aten.uniform" and len(numbers) > 1 else (0.0, 1.0)
            axis = uniform(low, high, shared=shared)
        else:
            mean, std = numbers[:2] if node.name == "aten.normal" and len(numbers) > 1 else (0.0, 1.0)
            return State(Moments(mean, mean**2 + std**2, output.shape), depth=-1)
        return State(field=Field(axis.nodes.unsqueeze(-1), (axis,), None), shape=output.shape, depth=-1)

    # Rules ---------------------------------------------------------------------------------------------------------

    def apply(self, rule: Rule, args: tuple[Any, ...], replaced: Mapping[int, Moments] | None = None) -> Any:
        return rule.forward(*(self.as_moments(a, replaced or {}) for a in args))

    def as_moments(self, arg: Any, replaced: Mapping[int, Moments]) -> Any:
        if isinstance(arg, Value):
            return replaced[id(arg)] if id(arg) in replaced else self.state(arg).moments
        if isinstance(arg, tuple):
            return tuple(self.as_moments(a, replaced) for a in arg)
        return arg

    def finish(self, node: Node, rule: Rule, result: Any) -> None:
        """Turn what a rule returned into states."""
        results = list(result) if isinstance(result, tuple) else [result]
        main = self.main(node)
        word = rule.word
        words = main.words if main is not None else ()
        said = word(*node.args) if callable(word) else node.name.partition(".")[2] if word is None else word
        if said:
            words = (*words, said)
        slope = main.slope * self.factor(node, rule) if self.backward and main is not None else 1.0
        chi, depth = (1.0, None) if rule.resets or main is None else (main.chi, main.depth)
        keep, last = (main.kept, main.last) if main is not None else (1.0, None)
        made = []
        for moments, output in zip(results, node.outputs, strict=False):
            shape = output.shape if output is not None else ()
            features = moments.features if moments.features is not None else self._features(main, shape)
            made.append(State(moments.like(shape=shape), words=words, chi=chi, depth=depth, slope=slope, keep=keep,
                              features=features, last=last))  # fmt: skip
        self.put(node, made)

    def _features(self, main: State | None, shape: tuple[int, ...]) -> int | None:
        return main.features if main is not None and len(main.shape) == len(shape) else _default_features(shape)

    def main(self, node: Node) -> State | None:
        signals = [self.state(v) for v in node.inputs if v.kind in ("input", "activation")]
        return max(signals, key=lambda s: s.rank, default=None)

    def factor(self, node: Node, rule: Rule, replaced: Mapping[int, Moments] | None = None, weight: int = -1) -> float:
        """Return E[g_in²] / E[g_out²] for the signal among the inputs."""
        if rule.backward is not None:
            found = rule.backward(*(self.as_moments(a, replaced or {}) for a in node.args))
            if isinstance(found, tuple):
                signal = next((i for i, v in enumerate(node.inputs) if v.kind in ("input", "activation")), 0)
                return float(found[min(signal, len(found) - 1)])
            return float(found)
        return sampled_backward(node, self.as_moments, replaced or {})

    def weigh(self, node: Node, rule: Rule) -> None:
        """Ask the solver for the scale of each weight of an op, then apply the op's rule."""
        from unitvar.propagate.recurrent import candidates

        replaced: dict[int, Moments] = {}
        chosen: list[str] = []
        main: State | None = None
        for use, x, share, second in candidates(node, rule, self.state):
            unit = Moments(0.0, 1.0 / use.fan_in, use.operand.shape)
            trial = {id(v): Moments(0.0, 0.0, v.shape) for v in node.inputs if v.kind in ("parameter", "derived")}
            trial[id(use.operand)] = unit
            if second is not None:  # a recurrence: its op shows no pre-activation
                forward = second
                back: float | None = use.fan_out / use.fan_in
            else:
                forward = _first(self.apply(rule, node.args, trial)).second
                back = self.factor(node, rule, trial) if self.backward else None
            square = self.solve(Weighing(use, x, forward, back, node, share))
            main = x if main is None else main
            if square is None:
                replaced[id(use.operand)] = self.actual_of(use.operand)
                self.out.seen.setdefault(use.parameter.name, []).append(node.name)
            else:
                replaced[id(use.operand)] = Moments(0.0, square * use.part / use.fan_in, use.operand.shape)
                chosen.append(use.parameter.name)
        for value in node.inputs:
            if value.kind in ("parameter", "derived") and id(value) not in replaced:
                parameter = followed(value)
                if chosen and parameter is not None and (len(value.shape) < 2 or node.name == "aten.baddbmm"):
                    self.out.biases.setdefault(chosen[0], []).append(parameter.name)
                    if self.zeroed(parameter.name):
                        replaced[id(value)] = Moments(0.0, 0.0, value.shape)
                        continue
                for name in [parameter.name] if parameter is not None else ancestors(value):
                    self.out.seen.setdefault(name, []).append(node.name)
                replaced[id(value)] = self.actual_of(value)
        result = self.apply(rule, node.args, replaced)
        if not chosen and main is None and not any(v.kind in ("parameter", "derived") for v in node.inputs):
            self.finish(node, rule, result)  # a product of two signals
            return
        reaching = main if main is not None else self.main(node)
        x = reaching if reaching is not None else State(Moments(0.0, 1.0))
        depth, chi = (0, 1.0) if x.rank[0] <= 0 else ((x.depth or 0) + 1, x.chi)
        if depth > self.out.longest[0]:
            self.out.longest = depth, chi
        recurrent = isinstance(node.args[1], tuple)
        made = []
        for moments, output in zip(list(result) if isinstance(result, tuple) else [result], node.outputs, strict=False):
            if output is not None:
                words = (str(rule.word),) if recurrent and rule.word else ()
                made.append(State(moments.like(shape=output.shape), words=words, chi=chi, depth=depth,
                                  last=chosen[0] if chosen else None))  # fmt: skip
                if chosen:
                    self.weighed[id(output)] = chosen[0]
        self.put(node, made)

    def actual_of(self, value: Value) -> Moments:
        if id(value) not in self.actual:
            tensor = realised(value)
            if tensor is None or tensor.is_meta or not tensor.numel():
                self.actual[id(value)] = Moments(0.0, 1.0 if len(value.shape) > 1 else 0.0, value.shape)
            else:
                flat = tensor.detach().double()
                self.actual[id(value)] = Moments(float(flat.mean()), float(flat.square().mean()), value.shape)
        return self.actual[id(value)]

    def pointwise(self, node: Node) -> bool:
        args = node.args
        name = node.name
        if name == "aten.add" and self.bias(node):
            return True
        states = self.read(args)
        if any(isinstance(s, tuple) and any(isinstance(t, State) for t in s) for s in states):
            return False
        trimmed = states[: len(states)]
        made = evaluate(name, lambda *values: _called(node, values), trimmed)
        if made is None:
            return False
        if made.has_field:  # else it has said so itself
            made.words = (*made.words, "." + name.partition(".")[2].strip("_"))
        output = next(o for o in node.outputs if o is not None)
        made.shape = output.shape
        self.put(node, [made])
        return True

    def bias(self, node: Node) -> bool:
        """Take a vector added to the output of a weight op as its bias."""
        a, b = node.args[:2]
        for signal, other in ((a, b), (b, a)):
            if isinstance(signal, Value) and isinstance(other, Value) and id(signal) in self.weighed:
                parameter = followed(other)
                if parameter is not None and sum(n > 1 for n in parameter.shape) <= 1 and self.zeroed(parameter.name):
                    self.out.biases.setdefault(self.weighed[id(signal)], []).append(parameter.name)
                    output = next(o for o in node.outputs if o is not None)
                    x = self.state(signal)
                    self.put(node, [x.moved(output.shape, x.features)])
                    return True
        return False

    def unknown(self, node: Node) -> None:
        self.out.unsupported[node.name] += 1
        self.out.where.setdefault(node.name, node.path)
        results = sampled(node, self.as_moments)
        self.finish(node, Rule(lambda: None, lambda *_: 1.0, None), results)

    def put(self, node: Node, states: Sequence[State]) -> None:
        for output, state in zip((o for o in node.outputs if o is not None), states, strict=False):
            self.out.states[id(output)] = state


def _aligned(x: State, shape: tuple[int, ...]) -> int | None:
    return x.features if x.features is not None and len(x.shape) == len(shape) else _default_features(shape)


def _first(result: Any) -> Moments:
    return result[0] if isinstance(result, tuple) else result  # type: ignore[no-any-return]


def _called(node: Node, values: tuple[Any, ...]) -> Any:
    op = node.op
    names = op.names[: len(values)]
    # Keyword-only arguments of the schema, and no dtype: a grid is float64 whatever the model computes in.
    schema = getattr(op.func, "_schema", None)
    positional, keywords = [], {}
    for name, value, argument in zip(names, values, schema.arguments if schema else [], strict=False):
        if argument.is_out or name in ("dtype", "layout", "device", "pin_memory", "memory_format"):
            continue
        if argument.kwarg_only:
            if value is not None:
                keywords[name] = value
        else:
            positional.append(value)
    if node.name in ("aten.where", "aten.masked_fill"):
        positional = [v.bool() if i == (0 if node.name == "aten.where" else 1) and isinstance(v, Tensor) else v
                      for i, v in enumerate(positional)]  # fmt: skip
    if node.name.startswith(("aten.bitwise", "aten.logical", "aten.__")):
        positional = [v.bool() if isinstance(v, Tensor) else v for v in positional]
    if node.name in ("aten.prelu", "aten._prelu_kernel"):
        x, slope = positional
        return torch.where(x > 0, x, slope * x)
    return op.functional(*positional, **keywords)


def realised(value: Value) -> Tensor | None:
    """Compute a value that depends on parameters and constants alone; None if that cannot be done."""
    if value.kind in ("parameter", "buffer", "constant", "input") and value.node is None:
        return value.tensor
    if value.kind not in ("derived", "buffer") or value.node is None:
        return None

    writes = bool(value.node.op.written)

    def real(arg: Any) -> Any:
        if isinstance(arg, Value):
            found = realised(arg)
            if found is None or found.is_meta:
                raise LookupError
            return found.detach().clone() if writes else found.detach()
        return tuple(real(a) for a in arg) if isinstance(arg, tuple) else arg

    try:
        args = [real(a) for a in value.node.args]
        schema = value.node.op.func._schema
        positional = [a for a, s in zip(args, schema.arguments, strict=True) if not s.kwarg_only]
        keywords = {s.name: a for a, s in zip(args, schema.arguments, strict=True) if s.kwarg_only and a is not None}
        with torch.no_grad():
            out = value.node.op.func(*positional, **keywords)
    except (LookupError, RuntimeError, TypeError, ValueError):
        return None
    if isinstance(out, (tuple, list)):
        out = out[[o is value for o in value.node.outputs].index(True)]
    return out if isinstance(out, Tensor) else None


def ancestors(value: Value) -> list[str]:
    """Name the parameters that a value was computed from."""
    if value.kind == "parameter":
        return [value.name]
    if value.node is None:
        return []
    return [name for v in value.node.inputs for name in ancestors(v)]
