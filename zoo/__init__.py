"""A zoo of network families: small for tests, at the sizes people use for the table in the docs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from zoo import convolutional, huggingface, sequence, timm_models
from zoo.convolutional import Model

__all__ = ["ATTENDING", "HUGGING_FACE", "PLAIN", "TIMM", "Family"]

Family = Callable[[], Model]

PLAIN: dict[str, tuple[Family, Family]] = {
    "MLP": (sequence.mlp, partial(sequence.mlp, 64, 128, 7, dropout=0.3)),
    "VGG": (convolutional.vgg, partial(convolutional.vgg, 16)),
    "ResNet": (
        convolutional.resnet,
        partial(convolutional.resnet, (2, 2), 16, bottleneck=False, side=32, batch=16),
    ),
    "ResNet without norm": (
        partial(convolutional.resnet, norm=False),
        partial(convolutional.resnet, (2, 2), 16, norm=False, bottleneck=False, side=32, batch=16),
    ),
    "DenseNet": (convolutional.densenet, partial(convolutional.densenet, 10, side=16)),
    "U-Net": (convolutional.unet, partial(convolutional.unet, 16, 2, side=32, batch=8)),
    "ConvNeXt": (
        convolutional.convnext,
        partial(convolutional.convnext, (1, 2), 32, scale=0.1, side=64, batch=8),
    ),
    "GAN generator": (convolutional.generator, partial(convolutional.generator, 16, 2, latent=32)),
    "MLP-Mixer": (sequence.mixer, partial(sequence.mixer, 64, (64, 128), 2, patch=4, side=32, batch=8)),
}
"""MLPs and CNNs: name → makers of a model and its example, of real and of small size."""

ATTENDING: dict[str, tuple[Family, Family]] = {
    "ViT": (sequence.vit, partial(sequence.vit, 64, 4, 2, patch=4, side=32, batch=8)),
    "LSTM classifier": (sequence.lstm, partial(sequence.lstm, 100, 32, 64, length=12)),
    "TransformerEncoder": (sequence.encoder, partial(sequence.encoder, 64, 4, 2, length=12)),
    "SwiGLU transformer": (sequence.swiglu, partial(sequence.swiglu, 100, 64, 128, 4, 2, length=16, batch=8)),
}
"""Families that mix positions by what they hold, likewise."""

HUGGING_FACE: dict[str, tuple[Family, Family]] = {
    name: (make, partial(make, small=True))
    for name, make in {
        "BERT": huggingface.bert,
        "GPT-2": huggingface.gpt2,
        "T5": huggingface.t5,
        "transformers' ViT": huggingface.vit,
        "Llama": huggingface.llama,
    }.items()
}
"""Models of `transformers`, likewise."""

TIMM: dict[str, tuple[Family, Family]] = {
    name: (make, partial(make, small=True))
    for name, make in {
        "EfficientNet": timm_models.efficientnet,
        "RegNetY": timm_models.regnet,
        "MaxViT": timm_models.maxvit,
        "XCiT": timm_models.xcit,
        "LeViT": timm_models.levit,
        "MobileViT": timm_models.mobilevit,
        "Swin v2": timm_models.swin_v2,
        "NF-ResNet": timm_models.nf_resnet,
        "ConvNeXt v2": timm_models.convnext_v2,
        "CaiT": timm_models.cait,
        "PoolFormer": timm_models.poolformer,
    }.items()
}
"""Models of `timm`, likewise."""
