"""The output layer: the last hidden states to logits."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from services.engine.model.linear import Linear, make_linear

EXACT = 32
"""How many of the likeliest tokens get their logit in float32."""


class Head:
    """Computes in the model's dtype, then once more in float32 for the likeliest tokens.

    Near 20, neighbouring bfloat16 numbers are 0.125 apart: tokens whose probabilities differ by a tenth tie, and a
    greedy answer would be decided by their ids. The second look costs about 0.1 ms a row.
    """

    def __init__(self, weight: torch.Tensor) -> None:
        """`weight` [vocabulary, hidden]."""
        self._weight = weight
        self._linear: Linear = make_linear(weight)

    def logits(self, rows: torch.Tensor) -> torch.Tensor:
        """float32 [rows, hidden] -> float32 [rows, vocabulary]."""
        logits = self._linear(rows.to(self._weight.dtype)).float()
        if self._weight.dtype is not torch.float32:
            likeliest = logits.topk(min(EXACT, logits.shape[1]), dim=1).indices
            weights = F.embedding(likeliest, self._weight).float()
            logits.scatter_(1, likeliest, torch.bmm(weights, rows.unsqueeze(2)).squeeze(2))
        return logits
