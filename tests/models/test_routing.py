"""Models that route tokens by values, with propagated real tensors: each runs on a claimed GPU as for real."""

from __future__ import annotations

import copy

import pytest
import torch
import transformers

from torchfake import FakeCopyMode, FakeTensorMode

SMALL = {
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 99,
    "num_local_experts": 4,
    "num_experts": 4,
    "moe_intermediate_size": 32,
}

# Mixtral and Qwen collect the tokens of an expert with `where`, Granite splits by a list of counts.
ROUTING = ["Mixtral", "Qwen2Moe", "GraniteMoe"]


@pytest.mark.parametrize("name", ROUTING)
def test_tokens_go_to_the_experts_that_they_go_to_for_real(name: str) -> None:
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**SMALL)
    real = getattr(transformers, f"{name}Model")(config).eval()
    tokens = torch.randint(SMALL["vocab_size"], (2, 12))
    mode = FakeTensorMode(propagate_real_tensors=True)
    with mode, FakeCopyMode(mode):
        model = copy.deepcopy(real)
    with mode:
        output = model.to("cuda")(mode.from_tensor(tokens).to("cuda")).last_hidden_state
        output.sum().backward()
    expected = real(tokens).last_hidden_state
    expected.sum().backward()
    assert output.device.type == "cuda"
    torch.testing.assert_close(output.real_tensor, expected, atol=1e-4, rtol=1e-4)
    gradients = {parameter: of.grad for parameter, of in real.named_parameters() if of.grad is not None}
    for parameter, fake in model.named_parameters():
        if parameter in gradients:
            torch.testing.assert_close(fake.grad.real_tensor, gradients[parameter], atol=1e-4, rtol=1e-3)
        else:
            assert fake.grad is None, f"{parameter}: no token went there"
