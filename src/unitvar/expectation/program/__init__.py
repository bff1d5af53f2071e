"""Programs: a recorded run, rewritten so that each uncertain tensor is a mean and a variance.

A program is an ``fx.GraphModule``: generated Python that calls torch on tensors, and so can be differentiated, compiled
and exported like any module. What is certain runs as it was recorded.
"""

from unitvar.expectation.program.build import Program, build

__all__ = ["Program", "build"]
