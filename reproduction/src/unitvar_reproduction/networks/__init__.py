"""The networks of the experiments, and how their weights are initialised."""

from unitvar_reproduction.networks.architectures import (
    ACTIVATIONS,
    DenseNet,
    Dropout,
    drop_,
    evaluating,
    layers_a_block,
    mlp,
    quicken_,
    vgg,
)

__all__ = ["ACTIVATIONS", "DenseNet", "Dropout", "drop_", "evaluating", "layers_a_block", "mlp", "quicken_", "vgg"]
