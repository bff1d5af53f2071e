"""Plans of models that exist on the meta device only, with as many tokens as they are trained on."""

import pytest
import torch

import unitvar

transformers = pytest.importorskip("transformers")


def llama(layers: int, **sizes: int) -> torch.nn.Module:
    config = transformers.LlamaConfig(num_hidden_layers=layers, use_cache=False, **sizes)
    with torch.device("meta"):
        return transformers.LlamaForCausalLM(config)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("tokens", [16, 2048])
def test_a_llama_on_the_meta_device_is_planned_for_any_number_of_tokens(tokens: int) -> None:
    sizes = {"hidden_size": 256, "intermediate_size": 704, "num_attention_heads": 8, "num_key_value_heads": 2}
    model = llama(3, **sizes)
    plan = unitvar.plan(model, {"input_ids": torch.zeros(1, tokens, dtype=torch.long, device="meta")})
    assert len(plan) == 3 * 7 + 1
    assert all(parameter.is_meta for parameter in model.parameters())
    assert plan["model.layers.2.mlp.down_proj.weight"].branch == "branch 6 of 6 in 'model.layers'"
    assert plan["lm_head.weight"].predicted == pytest.approx(1, rel=1e-3)
