"""The output layer tells near ties apart."""

from __future__ import annotations

import torch

from services.engine.model.head import EXACT, Head


def test_tokens_that_tie_in_bfloat16_are_told_apart() -> None:
    torch.manual_seed(0)
    weight = torch.randn(200, 64).to(torch.bfloat16)
    weight[7] = weight[3]
    weight[3, 0], weight[7, 0] = 4.0, 4.03125  # neighbours in bfloat16
    rows = torch.cat((torch.tensor([0.25]), weight[3, 1:].float() * 1.5)).unsqueeze(0)
    exact = rows @ weight.float().T
    rounded = exact.to(torch.bfloat16)
    assert rounded[0, 3] == rounded[0, 7], "the case is none: bfloat16 holds the difference"

    logits = Head(weight).logits(rows)
    assert logits.dtype is torch.float32
    assert int(logits.argmax()) == int(exact.argmax()) == 7
    likeliest = exact.topk(EXACT // 2).indices[0]
    assert torch.allclose(logits[0, likeliest], exact[0, likeliest], rtol=1e-5)


def test_float32_needs_no_second_look() -> None:
    torch.manual_seed(0)
    weight, rows = torch.randn(50, 16), torch.randn(3, 16)
    assert torch.allclose(Head(weight).logits(rows), rows @ weight.T, atol=1e-5)
