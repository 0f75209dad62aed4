"""Writes promotion.txt: the type in which libtorch computes with two operands, for every pair.

    python3 promotion.py > promotion.txt

Needs torch. Operands are tensors with dimensions (`f32`), tensors of rank 0 (`f32.`), and plain numbers (`f64#`).
"""

import torch

from generate import DTYPES

OPERANDS = [(name, torch.zeros(1, dtype=dtype)) for dtype, name in DTYPES.items()]
OPERANDS += [(name + ".", torch.zeros((), dtype=dtype)) for dtype, name in DTYPES.items()]
OPERANDS += [("bool#", True), ("i64#", 1), ("f64#", 1.0)]

if __name__ == "__main__":
    for i, (first, x) in enumerate(OPERANDS):
        for second, y in OPERANDS[i:]:
            if not (first.endswith("#") and second.endswith("#")):
                print(first, second, DTYPES[torch.result_type(x, y)])
