"""BatchNorm statistics recomputed with dropout off."""

from unitvar.batchnorm.reestimate import bn_statistics, reestimate_bn_, reestimated_bn
from unitvar.batchnorm.report import BatchNormChange, BatchNormReport
from unitvar.batchnorm.statistics import BatchNormStatistics, LayerStatistics

__all__ = [
    "BatchNormChange",
    "BatchNormReport",
    "BatchNormStatistics",
    "LayerStatistics",
    "bn_statistics",
    "reestimate_bn_",
    "reestimated_bn",
]
