"""BatchNorm statistics as they are with dropout off."""

from .reestimate import reestimate_bn_, reestimated_bn
from .report import BatchNormChange, BatchNormReport

__all__ = ["BatchNormChange", "BatchNormReport", "reestimate_bn_", "reestimated_bn"]
