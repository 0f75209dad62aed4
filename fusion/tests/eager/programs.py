"""Writes programs.txt: random programs with views and in-place operators, and what eager leaves behind.

    python3 programs.py > programs.txt

Needs torch. Each case is a recording, its inputs, its outputs, and its inputs after the call.
"""

import random

import torch

from generate import DTYPES, arg_text, data_text, type_text


class Program:
    def __init__(self, seed):
        self.random = random.Random(seed)
        self.tensors, self.lines = [], []

    def number(self, tensor):
        for i, (known, _) in enumerate(self.tensors):
            if known is tensor:
                return i
        return None

    def define(self, tensor):
        storage = tensor.untyped_storage().data_ptr()
        place = type_text(tensor)
        for i, (other, at) in enumerate(self.tensors):
            if at == storage and tensor.numel() > 0 and other.numel() > 0:
                place += f" in %{i}+{tensor.storage_offset() - other.storage_offset()}"
                break
        self.tensors.append((tensor, storage))
        return f"%{len(self.tensors) - 1}: {place}"

    def source(self, tensor, text):
        numbered, place = self.define(tensor).split(": ")
        self.lines.append(f"{numbered} = {text} : {place}")

    def call(self, op, *args):
        name, _, overload = op.partition(".")
        function = getattr(getattr(torch.ops.aten, name), overload or "default")
        try:
            result = function(*args)
        except RuntimeError:
            return
        texts = []
        for i, spec in enumerate(function._schema.arguments):
            value = args[i] if i < len(args) else (spec.default_value if spec.has_default_value() else None)
            if isinstance(value, torch.Tensor):
                text = f"%{self.number(value)}"
                text += "!" if spec.alias_info is not None and spec.alias_info.is_write else ""
            else:
                text = arg_text(value, str(spec.type), [])
            texts.append(f"{spec.name}={text}")
        results = []
        for t in result if isinstance(result, (list, tuple)) else [result]:
            known = self.number(t)
            results.append(self.define(t) if known is None else f"%{known}")
        self.lines.append(f"{', '.join(results)} = aten::{op}({', '.join(texts)})")

    def pick(self, dtype=None):
        found = [t for t, _ in self.tensors if dtype is None or t.dtype == dtype]
        return self.random.choice(found)

    def view(self):
        r, x = self.random, self.pick()
        rank = x.dim()
        dim = r.randrange(-rank, rank) if rank else 0
        size = x.shape[dim] if rank else 1
        if size == 0:
            return
        choices = ["unsqueeze", "detach", "view", "reshape", "t"]
        if rank:
            choices += ["slice", "slice", "select", "split", "unbind", "transpose", "permute", "narrow", "squeeze", "chunk", "flatten"]
        if rank >= 2:
            choices += ["diagonal", "transpose"]
        kind = r.choice(choices)
        if kind == "unsqueeze":
            self.call("unsqueeze", x, r.randint(-rank - 1, rank))
        elif kind == "detach":
            self.call("detach", x)
        elif kind in ("view", "reshape"):
            self.call(kind, x, [-1] if r.random() < 0.7 or x.numel() % 2 else [2, -1])
        elif kind == "t":
            self.call("t", x)
        elif kind == "slice":
            self.call("slice.Tensor", x, dim, r.randint(-size, size - 1), r.choice([None, size, -1]), r.choice([1, 1, 2, 3]))
        elif kind == "select":
            self.call("select.int", x, dim, r.randint(-size, size - 1))
        elif kind == "narrow":
            start = r.randrange(size)
            self.call("narrow", x, dim, start, r.randint(1, size - start))
        elif kind == "split":
            self.call("split.Tensor", x, r.randint(1, size), dim)
        elif kind == "chunk":
            self.call("chunk", x, r.randint(1, 3), dim)
        elif kind == "unbind":
            self.call("unbind.int", x, dim)
        elif kind == "transpose":
            self.call("transpose.int", x, dim, r.randrange(rank))
        elif kind == "permute":
            self.call("permute", x, r.sample(range(rank), rank))
        elif kind == "squeeze":
            self.call("squeeze.dim", x, dim)
        elif kind == "flatten":
            self.call("flatten.using_ints", x)
        elif kind == "diagonal":
            self.call("diagonal", x, r.randint(-1, 1), *r.sample(range(rank), 2))

    def pure(self):
        r, x = self.random, self.pick()
        kind = r.choice(["neg", "clone", "add", "mul", "sum", "expand"])
        if kind in ("neg", "clone"):
            self.call(kind, x)
        elif kind in ("add", "mul"):
            self.call(f"{kind}.Tensor", x, self.pick())
        elif kind == "sum":
            self.call("sum", x)
        else:
            self.call("expand", x, [2] + list(x.shape))

    def write(self):
        r, x = self.random, self.pick()
        kind = r.choice(["add", "add_number", "mul", "relu", "fill", "zero", "copy", "masked_fill", "clamp", "neg", "eq", "sub", "abs"])
        if kind in ("add", "mul", "sub"):
            self.call(f"{kind}_.Tensor", x, self.pick())
        elif kind == "add_number":
            self.call("add_.Scalar", x, 3)
        elif kind in ("relu", "neg", "abs"):
            self.call(f"{kind}_", x)
        elif kind == "fill":
            self.call("fill_.Scalar", x, r.randint(-3, 3))
        elif kind == "zero":
            self.call("zero_", x)
        elif kind == "copy":
            self.call("copy_", x, self.pick())
        elif kind == "masked_fill":
            self.call("masked_fill_.Scalar", x, self.pick(torch.bool), 7)
        elif kind == "clamp":
            self.call("clamp_", x, -2, 3)
        elif kind == "eq":
            self.call("eq_.Scalar", x, 1)


def program(seed):
    p = Program(seed)
    r = p.random
    shapes = [[4], [2, 3], [3, 4], [2, 3, 4], [1, 5], [], [3, 1, 2], [0, 2]]
    inputs = []
    for i in range(r.randint(1, 3)):
        shape = r.choice(shapes)
        x = torch.tensor([r.randint(-4, 4) for _ in range(max(1, torch.Size(shape).numel()))][:torch.Size(shape).numel()])
        x = x.reshape(shape).to(r.choice([torch.float32, torch.float32, torch.int64, torch.float64]))
        if x.dim() == 2 and r.random() < 0.3:
            x = x.t().contiguous().t()
        inputs.append(x)
        p.source(x, f"input {i}")
    mask = torch.tensor(r.choice([True, False]))
    inputs.append(mask)
    p.source(mask, f"input {len(inputs) - 1}")
    before = [data_text(x) for x in inputs]
    for _ in range(r.randint(4, 14)):
        r.choice([p.view, p.view, p.pure, p.write, p.write])()
    outputs = [p.pick() for _ in range(r.randint(1, 3))]
    print(f"case {seed}")
    print("recording {")
    for line in p.lines:
        print(" ", line)
    print("  outputs " + ", ".join(f"%{p.number(t)}" for t in outputs))
    print("}")
    for text in before:
        print("in", text)
    for t in outputs:
        print("out", data_text(t))
    for t in inputs:
        print("after", data_text(t))


if __name__ == "__main__":
    for seed in range(400):
        program(seed)
