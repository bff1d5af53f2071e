"""Models of `transformers`, from configurations: nothing is downloaded."""

from __future__ import annotations

import importlib
from typing import Any

import torch

from zoo.convolutional import Model, images

__all__ = ["bert", "gpt2", "llama", "t5", "vit"]

_SMALL = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
_BASE = {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072}


def _named(name: str) -> Any:
    """Give a class of transformers, which is typed only in part."""
    return getattr(importlib.import_module("transformers"), name)


def _tokens(config: Any, small: bool) -> torch.Tensor:
    return torch.randint(config.vocab_size, (4, 12 if small else 128))


def bert(small: bool = False) -> Model:
    """Build BERT, of base size unless small."""
    config = _named("BertConfig")(vocab_size=100, **_SMALL) if small else _named("BertConfig")()
    return _named("BertModel")(config), {"input_ids": _tokens(config, small)}


def gpt2(small: bool = False) -> Model:
    """Build GPT-2, of the size of its smallest release unless small."""
    sizes = {"vocab_size": 100, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 32} if small else {}
    config = _named("GPT2Config")(**sizes, bos_token_id=0, eos_token_id=0)
    return _named("GPT2LMHeadModel")(config), {"input_ids": _tokens(config, small)}


def t5(small: bool = False) -> Model:
    """Build T5, of the size of T5-small unless small."""
    sizes = {"vocab_size": 100, "d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4}
    config = _named("T5Config")(**(sizes if small else {}), decoder_start_token_id=0)
    ids = _tokens(config, small)
    return _named("T5ForConditionalGeneration")(config), {"input_ids": ids, "decoder_input_ids": ids}


def vit(small: bool = False) -> Model:
    """Build ViT, B/16 unless small."""
    config = _named("ViTConfig")(image_size=32, patch_size=8, **_SMALL) if small else _named("ViTConfig")()
    return _named("ViTForImageClassification")(config), images(4, config.image_size)


def llama(small: bool = False) -> Model:
    """Build Llama, of the size of BERT-base unless small."""
    sizes = {**_SMALL, "num_key_value_heads": 2, "vocab_size": 100} if small else {**_BASE, "num_key_value_heads": 4}
    config = _named("LlamaConfig")(**sizes)
    return _named("LlamaForCausalLM")(config), {"input_ids": _tokens(config, small)}
