"""The zoo: every family is traced, every weight found or left alone for a reason, and predicted is measured."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import unitvar
from tests import zoo
from tests.measuring import measured

Make = Callable[[], zoo.Model]


def share(make: Make, runs: int) -> tuple[unitvar.Plan, float]:
    """Return the plan, and the share of weights whose E z², averaged over draws, is within 1.5 x of the predicted."""
    found: dict[str, list[float]] = {}
    for run in range(runs):
        torch.manual_seed(run)
        model, example = make()
        plan = unitvar.initialize_(model, example)
        for name, value in measured(model, example).items():
            found.setdefault(name, []).append(value)
    ratios = [sum(v) / len(v) / plan[name].predicted for name, v in found.items() if name not in plan.skipped]
    return plan, sum(1 / 1.5 <= r <= 1.5 for r in ratios) / len(ratios)


def check(model: nn.Module, plan: unitvar.Plan) -> None:
    weights = {n for n, p in model.named_parameters(remove_duplicate=False) if p.dim() > 1}
    assert weights == set(plan.skipped) | {layer.name for layer in plan}
    assert not plan.unsupported
    assert all(len(line) <= 80 for line in str(plan).splitlines())


@pytest.mark.parametrize("family", [*zoo.PLAIN, *zoo.OTHER])
def test_predicted_is_measured(family: str) -> None:
    make = {**zoo.PLAIN, **zoo.OTHER}[family]
    plan, within = share(make, runs=24)  # draws of small networks differ much
    check(make()[0], plan)
    assert within >= 0.95


def hugging_face(name: str) -> zoo.Model:
    import transformers

    ids = torch.randint(100, (4, 12))
    sizes: dict[str, Any] = {
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 128,
    }
    if name == "BERT":
        return transformers.BertModel(transformers.BertConfig(vocab_size=100, **sizes)), {"input_ids": ids}
    if name == "GPT-2":
        ends = {"bos_token_id": 0, "eos_token_id": 0}
        config = transformers.GPT2Config(vocab_size=100, n_embd=64, n_layer=2, n_head=4, n_positions=32, **ends)
        return transformers.GPT2LMHeadModel(config), {"input_ids": ids}
    if name == "T5":
        config = transformers.T5Config(
            vocab_size=100, d_model=64, d_kv=16, d_ff=128, num_layers=2, num_heads=4, decoder_start_token_id=0
        )
        return transformers.T5ForConditionalGeneration(config), {"input_ids": ids, "decoder_input_ids": ids}
    if name == "ViT":
        config = transformers.ViTConfig(image_size=32, patch_size=8, **sizes)
        return transformers.ViTForImageClassification(config), torch.randn(4, 3, 32, 32)
    config = transformers.LlamaConfig(vocab_size=100, num_key_value_heads=2, **sizes)
    return transformers.LlamaForCausalLM(config), {"input_ids": ids}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["BERT", "GPT-2", "T5", "ViT", "Llama"])
def test_transformers_are_planned(name: str) -> None:
    plan, within = share(lambda: hugging_face(name), runs=4)
    check(hugging_face(name)[0], plan)
    assert within >= 0.95
