"""BatchNorm statistics as they are with dropout off."""

from unitvar.batchnorm.reestimate import reestimate_bn_, reestimated_bn
from unitvar.batchnorm.report import BatchNormChange, BatchNormReport

__all__ = ["BatchNormChange", "BatchNormReport", "reestimate_bn_", "reestimated_bn"]
