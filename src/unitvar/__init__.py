"""Unit variance for PyTorch networks with dropout.

After Hendrycks & Gimpel, *Adjusting for Dropout Variance in Batch Normalization and Weight Initialization*.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from unitvar import init, plot
    from unitvar.activations import ActivationMoments, activation_moments
    from unitvar.batchnorm import BatchNormReport, reestimate_bn_, reestimated_bn
    from unitvar.flow import History, VarianceReport, measure, watch
    from unitvar.moments import Moments, rule
    from unitvar.planning import LayerPlan, Plan, initialize_, plan
    from unitvar.running.modes import dropout_off

__all__ = [
    "ActivationMoments",
    "BatchNormReport",
    "History",
    "LayerPlan",
    "Moments",
    "Plan",
    "VarianceReport",
    "activation_moments",
    "dropout_off",
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
    "History": "unitvar.flow",
    "LayerPlan": "unitvar.planning",
    "Moments": "unitvar.moments",
    "Plan": "unitvar.planning",
    "VarianceReport": "unitvar.flow",
    "activation_moments": "unitvar.activations",
    "dropout_off": "unitvar.running.modes",
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
    return import_module(f"unitvar.{name}") if home == "unitvar" else getattr(import_module(home), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATER})
