"""One run of a model, as a graph of ops."""

from unitvar.graph.graph import Graph, Node, Value
from unitvar.graph.op import Op
from unitvar.graph.trace import trace

__all__ = ["Graph", "Node", "Op", "Value", "trace"]
