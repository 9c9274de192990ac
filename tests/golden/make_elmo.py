"""Freezes what PyTorch computes for a tiny ELMo with drawn weights: elmo.npz.

python tests/golden/make_elmo.py   (made with torch 2.13.0)

The layers are `torch.nn.LSTM` with projections where nothing is clipped, and written out step by
step where cells and outputs are. Each text is computed by itself, without padding.
"""

import sys
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))
from drawn_elmo import CELL, CLIPS, FILE, FILTERS, HIGHWAYS, LAYERS, WIDTH, shapes, texts
from drawn_weights import draw


def of_words(weights, characters):
    """The vector of each word [L, WIDTH]."""
    table = torch.from_numpy(weights["char_embed"])
    x = table[torch.from_numpy(characters).long()].transpose(1, 2)
    outputs = []
    for n in range(len(FILTERS)):
        kernel = torch.from_numpy(weights[f"CNN/W_cnn_{n}"][0]).permute(2, 1, 0)
        y = torch.nn.functional.conv1d(x, kernel, torch.from_numpy(weights[f"CNN/b_cnn_{n}"]))
        outputs.append(torch.relu(y.amax(dim=-1)))
    x = torch.cat(outputs, dim=-1)
    for n in range(HIGHWAYS):
        part = {
            name: x @ torch.from_numpy(weights[f"CNN_high_{n}/W_{name}"])
            + torch.from_numpy(weights[f"CNN_high_{n}/b_{name}"])
            for name in ("carry", "transform")
        }
        gate = torch.sigmoid(part["carry"])
        x = gate * torch.relu(part["transform"]) + (1 - gate) * x
    projection = torch.from_numpy(weights["CNN_proj/W_proj"])
    return x @ projection + torch.from_numpy(weights["CNN_proj/b_proj"])


def cell_weights(weights, direction, layer):
    """The tensors of an LSTM in PyTorch's order of gates: input, forget, new, output."""
    name = f"RNN_{direction}/RNN/MultiRNNCell/Cell{layer}/LSTMCell"
    gates = np.r_[0:CELL, 2 * CELL : 3 * CELL, CELL : 2 * CELL, 3 * CELL : 4 * CELL]
    bias = weights[f"{name}/B"].copy()
    bias[2 * CELL : 3 * CELL] += 1
    both = weights[f"{name}/W_0"][:, gates].T
    parts = both[:, :WIDTH], both[:, WIDTH:], bias[gates], weights[f"{name}/W_P_0"].T
    return [torch.from_numpy(np.ascontiguousarray(one)) for one in parts]


def read(weights, direction, layer, x):
    """The outputs [L, WIDTH] of a layer of PyTorch's."""
    lstm = torch.nn.LSTM(WIDTH, CELL, proj_size=WIDTH)
    kernel, recurrent, bias, projection = cell_weights(weights, direction, layer)
    lstm.weight_ih_l0.data, lstm.weight_hh_l0.data = kernel, recurrent
    lstm.bias_ih_l0.data, lstm.bias_hh_l0.data = bias, torch.zeros_like(bias)
    lstm.weight_hr_l0.data = projection
    return lstm(x[:, None])[0][:, 0]


def read_clipped(weights, direction, layer, x):
    """The same, step by step with clips."""
    kernel, recurrent, bias, projection = cell_weights(weights, direction, layer)
    memory, output, outputs = torch.zeros(CELL), torch.zeros(WIDTH), []
    for step in x:
        i, f, g, o = (kernel @ step + recurrent @ output + bias).split(CELL)
        memory = torch.sigmoid(f) * memory + torch.sigmoid(i) * torch.tanh(g)
        memory = memory.clamp(-CLIPS[0], CLIPS[0])
        output = projection @ (torch.sigmoid(o) * torch.tanh(memory))
        output = output.clamp(-CLIPS[1], CLIPS[1])
        outputs.append(output)
    return torch.stack(outputs)


def states(weights, characters, read):
    """All layers [N + 1, L, 2 * WIDTH]."""
    x = of_words(weights, characters)
    found = [torch.cat([x, x], dim=-1)]
    halves = [x, x.flip(0)]
    for layer in range(LAYERS):
        outputs = [read(weights, n, layer, half) for n, half in enumerate(halves)]
        halves = [y + half if layer else y for y, half in zip(outputs, halves, strict=True)]
        found.append(torch.cat([halves[0], halves[1].flip(0)], dim=-1))
    return torch.stack(found).detach().numpy()


def main():
    weights = {name: draw(name, shape) for name, shape in shapes().items()}
    arrays = {
        f"{name}/{number}": states(weights, characters, how)
        for name, how in (("unclipped", read), ("clipped", read_clipped))
        for number, characters in enumerate(texts())
    }
    np.savez_compressed(FILE, **arrays)


if __name__ == "__main__":
    main()
