"""Freezes a stochastic answer network in PyTorch, values and gradients: stochastic_answer.npz.

python tests/golden/make_stochastic_answer.py  (made with torch 2.13.0)

Liu et al. 2019 (MT-DNN), section 3, on the two texts of a row: with all steps, and with some.
"""

from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn.functional import softmax

ROWS, LENGTH, WIDTH, STEPS, LABELS = 3, 9, 6, 5, 3
FIRSTS, SECONDS = (4, 2, 6), (3, 5, 1)  # tokens of the texts, behind [CLS]


class StochasticAnswer(nn.Module):
    """The reference: one pair at a time, with the states of its two texts."""

    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Linear(WIDTH, 1, bias=False)
        self.bilinear = nn.Linear(WIDTH, WIDTH, bias=False)
        self.unit = nn.GRUCell(WIDTH, WIDTH)
        self.classifier = nn.Linear(4 * WIDTH, LABELS)

    def forward(self, first: torch.Tensor, second: torch.Tensor, kept: list[int]) -> torch.Tensor:
        """The probabilities [C], from states [M, D] and [N, D] and the numbers of the steps."""
        state = softmax(self.query(second)[:, 0], 0) @ second
        found = []
        for _ in range(STEPS):
            read = softmax(first @ self.bilinear(state), 0) @ first
            both = torch.cat([state, read, (state - read).abs(), state * read])
            found.append(softmax(self.classifier(both), 0))
            state = self.unit(read[None], state[None])[0]
        return torch.stack([found[step] for step in kept]).mean(0)


def main() -> None:
    """Write the file."""
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    model = StochasticAnswer()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.6)
    hidden = torch.randn(ROWS, LENGTH, WIDTH, requires_grad=True)
    labels = [2, 0, 1]
    arrays = {"hidden": hidden, "labels": labels, "firsts": FIRSTS, "seconds": SECONDS}
    arrays |= {f"parameters/{name}": value for name, value in model.named_parameters()}
    for name, kept in (("all", [range(STEPS)] * ROWS), ("some", [[0, 3], [4], [1, 2, 3]])):
        model.zero_grad()
        hidden.grad = None
        probabilities = torch.stack(
            [
                model(hidden[row, 1 : 1 + m], hidden[row, 1 + m : 1 + m + n], list(kept[row]))
                for row, (m, n) in enumerate(zip(FIRSTS, SECONDS, strict=True))
            ]
        )
        loss = -torch.log(probabilities[range(ROWS), labels]).sum()
        loss.backward()
        steps = np.array([[step in own for step in range(STEPS)] for own in kept])
        arrays |= {f"{name}/kept": steps, f"{name}/probabilities": probabilities}
        arrays |= {f"{name}/loss": loss, f"{name}/gradients/hidden": hidden.grad.clone()}
        arrays |= {
            f"{name}/gradients/{key}": value.grad.clone() for key, value in model.named_parameters()
        }
    frozen = {
        name: value.detach().numpy() if isinstance(value, torch.Tensor) else np.asarray(value)
        for name, value in arrays.items()
    }
    np.savez_compressed(Path(__file__).with_name("stochastic_answer.npz"), **frozen)


if __name__ == "__main__":
    main()
