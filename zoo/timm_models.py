"""Models of `timm` with random weights: squeeze-and-excite gates, windows, cosine and channel attention.

Sizes are the published ones unless small; small gates are wider than usual, so that a few draws tell their mean. Rates
of dropout and stochastic depth are those of the papers' training recipes, and zero where a recipe has none.
"""

from __future__ import annotations

import importlib
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from zoo.convolutional import Model, images

__all__ = [
    "cait",
    "convnext_v2",
    "efficientnet",
    "levit",
    "maxvit",
    "mobilevit",
    "nf_resnet",
    "poolformer",
    "regnet",
    "swin_v2",
    "xcit",
]

_BATCH = 4
_TORCHVISION = tuple(
    f"torchvision{part}" for part in ("", ".datasets", ".ops", ".ops.misc", ".transforms", ".transforms.functional")
)


def _absent(name: str) -> Any:
    """Make a class whose every attribute is again such a class."""
    if name.startswith("__"):  # Python's own questions, as inspect asks them, need their usual answer
        raise AttributeError(name)
    return _Absent(name, (), {})


class _Absent(type):
    def __getattr__(cls, name: str) -> Any:
        return _absent(name)


@contextmanager
def _without_torchvision() -> Iterator[None]:
    """Let timm be imported where torchvision cannot: its models need no more of it than the names in `isinstance`."""
    try:
        importlib.import_module("torchvision")
    except (ImportError, RuntimeError):  # missing, or built for another torch
        pass
    else:
        yield
        return
    before = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == "torchvision"}
    for name in before:
        del sys.modules[name]
    try:
        for name in _TORCHVISION:
            module = types.ModuleType(name)
            module.__dict__.update(__path__=[], __getattr__=_absent)
            parent, _, child = name.rpartition(".")
            if parent:
                setattr(sys.modules[parent], child, module)
            sys.modules[name] = module
        yield
    finally:
        for name in _TORCHVISION:
            sys.modules.pop(name, None)
        sys.modules.update(before)


def _named(path: str, name: str) -> Any:
    """Give a name of timm, which is not typed."""
    with _without_torchvision():
        module = importlib.import_module(path)
    return getattr(module, name)


def _model(name: str, side: int, **options: Any) -> Model:
    return _named("timm", "create_model")(name, **options), images(_BATCH, side)


def efficientnet(small: bool = False) -> Model:
    """Build EfficientNet (Tan & Le 2019), B0 unless small: SiLU, depthwise convolutions, squeeze-and-excite."""
    rates = {"drop_rate": 0.2, "drop_path_rate": 0.2}
    if not small:
        return _model("efficientnet_b0", 224, **rates)
    blocks = _named("timm.models._efficientnet_builder", "decode_arch_def")(
        [["ds_r1_k3_s1_e1_c32_se0.5"], ["ir_r2_k3_s2_e4_c32_se0.5"], ["ir_r1_k5_s2_e4_c48_se0.5"]]
    )
    net = _named("timm.models.efficientnet", "EfficientNet")(blocks, num_features=128, act_layer=nn.SiLU, **rates)
    return net, images(_BATCH, 64)


def regnet(small: bool = False) -> Model:
    """Build RegNetY (Radosavovic et al. 2020), 400 MF unless small: grouped convolutions and squeeze-and-excite."""
    if not small:
        return _model("regnety_004", 224)
    return _model("regnety_004", 64, w0=32, wa=24.0, wm=1.6, depth=5, se_ratio=1.0)


def maxvit(small: bool = False) -> Model:
    """Build MaxViT (Tu et al. 2022), T unless small: MBConv, then attention in windows and on a grid."""
    if not small:
        return _model("maxvit_tiny_tf_224", 224, drop_path_rate=0.2)
    sizes = {"img_size": 64, "embed_dim": (32, 64), "depths": (1, 1), "block_type": ("M", "M"), "stem_width": 16}
    parts = {"head_hidden_size": 64, "transformer_window_size": (4, 4), "conv_attn_ratio": 0.5}
    return _model("maxvit_tiny_tf_224", 64, drop_path_rate=0.2, **sizes, **parts)


def xcit(small: bool = False) -> Model:
    """Build XCiT (El-Nouby et al. 2021), N12/16 unless small: attention between channels, class attention after it."""
    if not small:
        return _model("xcit_nano_12_p16_224", 224)
    sizes = {"patch_size": 8, "embed_dim": 64, "depth": 2, "num_heads": 4, "cls_attn_layers": 1}
    return _model("xcit_nano_12_p16_224", 64, img_size=64, **sizes)


def levit(small: bool = False) -> Model:
    """Build LeViT (Graham et al. 2021), 128S unless small: attention with BatchNorm, biases by offset, hardswish."""
    if not small:
        return _model("levit_128s", 224)
    sizes = {"embed_dim": (32, 64), "num_heads": (2, 4), "depth": (1, 2)}
    return _model("levit_128s", 64, img_size=64, stem_type="s8", key_dim=16, **sizes)  # 64 tokens, then 16


def mobilevit(small: bool = False) -> Model:
    """Build MobileViT (Mehta & Rastegari 2022), S unless small: transformers over unfolded feature maps."""
    if not small:
        return _model("mobilevit_s", 256, drop_rate=0.1)
    inverted = _named("timm.models.mobilevit", "_inverted_residual_block")
    attending = _named("timm.models.mobilevit", "_mobilevit_block")
    blocks = (
        inverted(d=1, c=32, s=1),
        attending(d=1, c=48, s=2, transformer_dim=64, transformer_depth=1, patch_size=2),
    )
    return _model("mobilevit_s", 64, blocks=blocks, num_features=128, drop_rate=0.1)


def swin_v2(small: bool = False) -> Model:
    """Build Swin v2 (Liu et al. 2022), T unless small: cosine attention in shifted windows, norms after branches."""
    if not small:
        return _model("swinv2_tiny_window8_256", 256, drop_path_rate=0.2)
    sizes = {"img_size": 64, "window_size": 4, "embed_dim": 32, "depths": (2, 2), "num_heads": (2, 4)}
    return _model("swinv2_tiny_window8_256", 64, drop_path_rate=0.2, **sizes)


def nf_resnet(small: bool = False) -> Model:
    """Build NF-ResNet (Brock et al. 2021), 50 unless small: the forward pass standardises every kernel."""
    rates = {"drop_rate": 0.25, "drop_path_rate": 0.1}
    if not small:
        return _model("nf_resnet50", 224, **rates)
    return _model("nf_resnet50", 64, depths=(2, 2), channels=(64, 128), stem_chs=32, **rates)


def convnext_v2(small: bool = False) -> Model:
    """Build ConvNeXt v2 (Woo et al. 2023), atto unless small: global response normalisation."""
    sizes = {"depths": (1, 1, 1, 1), "dims": (32, 32, 64, 64)} if small else {}
    return _model("convnextv2_atto", 128 if small else 224, drop_path_rate=0.1, **sizes)


def cait(small: bool = False) -> Model:
    """Build CaiT (Touvron et al. 2021), XXS-24 unless small: heads that talk, layer scale, class attention."""
    if not small:
        return _model("cait_xxs24_224", 224, drop_path_rate=0.05)
    sizes = {"img_size": 64, "patch_size": 8, "embed_dim": 64, "depth": 2, "init_values": 0.1}
    return _model("cait_xxs24_224", 64, drop_path_rate=0.05, **sizes)


def poolformer(small: bool = False) -> Model:
    """Build PoolFormer (Yu et al. 2022), S12 unless small: average pooling in place of attention."""
    if not small:
        return _model("poolformer_s12", 224, drop_path_rate=0.1)
    metaformer = _named("timm.models.metaformer", "MetaFormer")
    sizes = {"depths": (1, 1), "dims": (32, 64), "layer_scale_init_values": 0.1, "res_scale_init_values": None}
    options = {"downsample_norm": None, "mlp_bias": True, "use_mlp_head": False, "drop_path_rate": 0.1}
    group_norm = _named("timm.layers", "GroupNorm1")
    return metaformer(**sizes, **options, mlp_act=nn.GELU, norm_layers=group_norm), images(_BATCH, 64)
