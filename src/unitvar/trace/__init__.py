"""One run of a model, as a graph of ops."""

from unitvar.trace.graph import Graph, Node, Op, Value
from unitvar.trace.run import trace

__all__ = ["Graph", "Node", "Op", "Value", "trace"]
