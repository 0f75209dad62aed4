"""Writes `layers.pt`, a TorchScript file with a list of modules, of which some have no parameters. Needs torch 2.11."""
import sys

import torch
from torch import nn

from scripted import save


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.act, self.down = nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8)

    def forward(self, x):
        return self.down(self.act(self.up(x)))


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.mlp, self.squash = nn.LayerNorm(8), Mlp(), nn.Tanh()

    def forward(self, x):
        return x + self.squash(self.mlp(self.norm(x)))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.h = nn.ModuleList([Layer(), Layer()])
        self.head, self.probabilities = nn.Linear(8, 8), nn.Softmax(-1)

    def forward(self, x):
        for layer in self.h:
            x = layer(x)
        return self.probabilities(self.head(x))


torch.manual_seed(0)
save(Model(), sys.argv[1])
