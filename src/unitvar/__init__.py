"""Unit variance for PyTorch networks with dropout.

After Hendrycks & Gimpel, *Adjusting for Dropout Variance in Batch Normalization and Weight Initialization*.
"""

import importlib as _importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from unitvar import init, plot
    from unitvar.activations import ActivationMoments, activation_moments
    from unitvar.batchnorm import BatchNormReport, BatchNormStatistics, bn_statistics, reestimate_bn_, reestimated_bn
    from unitvar.expectation import Expectation, expect, expected
    from unitvar.flow import History, VarianceReport, measure, watch
    from unitvar.moments import Moments, rule
    from unitvar.planning import LayerPlan, Plan, initialize_, plan
    from unitvar.running.modes import dropout_off

__all__ = [
    "ActivationMoments",
    "BatchNormReport",
    "BatchNormStatistics",
    "Expectation",
    "History",
    "LayerPlan",
    "Moments",
    "Plan",
    "VarianceReport",
    "activation_moments",
    "bn_statistics",
    "dropout_off",
    "expect",
    "expected",
    "init",
    "initialize_",
    "measure",
    "plan",
    "plot",
    "reestimate_bn_",
    "reestimated_bn",
    "rule",
    "watch",
]

__version__ = "0.2.0"

# Where a name lives that is imported on first use: `unitvar --help` need not wait for torch, nor `import unitvar` for
# what it does not use.
_LATER = {
    "ActivationMoments": "unitvar.activations",
    "BatchNormReport": "unitvar.batchnorm",
    "BatchNormStatistics": "unitvar.batchnorm",
    "Expectation": "unitvar.expectation",
    "History": "unitvar.flow",
    "LayerPlan": "unitvar.planning",
    "Moments": "unitvar.moments",
    "Plan": "unitvar.planning",
    "VarianceReport": "unitvar.flow",
    "activation_moments": "unitvar.activations",
    "bn_statistics": "unitvar.batchnorm",
    "dropout_off": "unitvar.running.modes",
    "expect": "unitvar.expectation",
    "expected": "unitvar.expectation",
    "init": "unitvar",
    "initialize_": "unitvar.planning",
    "measure": "unitvar.flow",
    "plan": "unitvar.planning",
    "plot": "unitvar",
    "reestimate_bn_": "unitvar.batchnorm",
    "reestimated_bn": "unitvar.batchnorm",
    "rule": "unitvar.moments",
    "watch": "unitvar.flow",
}


def __getattr__(name: str) -> object:
    home = _LATER.get(name)
    if home is None:
        raise AttributeError(f"module 'unitvar' has no attribute {name!r}")
    if home == "unitvar":
        return _importlib.import_module(f"unitvar.{name}")
    return getattr(_importlib.import_module(home), name)


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
