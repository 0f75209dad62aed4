"""Writes `masks.pt`, a TorchScript file with buffers of integers and truth values beside its weights. Needs torch 2.11."""
import sys

import torch
from torch import nn

from scripted import save


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.register_buffer("scale", torch.rand(8) + 0.5)
        self.register_buffer("order", torch.arange(8).flip(0))
        self.register_buffer("mask", torch.arange(8) % 3 == 0)

    def forward(self, x):
        return (self.linear(x) * self.scale).index_select(1, self.order).masked_fill(self.mask, 0.0)


torch.manual_seed(0)
save(Model(), sys.argv[1])
