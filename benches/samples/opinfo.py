"""Writes PyTorch's operator samples as programs that `tilefuse samples` runs.

    python3 opinfo.py --out DIR [--dtypes f32,bf16,f16,i64,bool,complex64] [--device cuda] [--only matmul] [--jobs 4]
                      [--most 4]

Needs torch with its test modules, numpy and expecttest. Each sample of `op_db` is called once; what it calls of the
dispatcher above autograd, which is where Tilefuse captures, becomes one program in the text form of
`src/random/text.rs`: the sample's tensors are inputs, and tensors that the call makes outside of the dispatcher are
parameters. `DIR/<dtype>.txt` has a line `sample NAME` before each program, and `DIR/not-carried.txt` the samples that
have no such form, with the reason.
"""

import argparse
import collections
import multiprocessing
import pathlib
import random
import warnings

import torch
from torch.utils._pytree import tree_flatten

DTYPES = {
    "f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16, "f64": torch.float64, "i64": torch.int64,
    "i32": torch.int32, "bool": torch.bool, "complex64": torch.complex64,
}
KINDS = {
    torch.uint8: "u8", torch.int8: "i8", torch.int16: "i16", torch.int32: "i32", torch.int64: "i64",
    torch.float16: "f16", torch.float32: "f32", torch.float64: "f64", torch.complex32: "c32", torch.complex64: "c64",
    torch.complex128: "c128", torch.bool: "bool", torch.bfloat16: "bf16",
}
MEMORY_FORMATS = {
    torch.contiguous_format: 0, torch.preserve_format: 1, torch.channels_last: 2, torch.channels_last_3d: 3,
}
LAYOUTS = {torch.strided: 0, torch.sparse_coo: 1, torch.sparse_csr: 2, torch._mkldnn: 4, torch.sparse_csc: 5,
           torch.sparse_bsr: 6, torch.sparse_bsc: 7}
# Above autograd and autocast.
KEY = "TESTING_ONLY_GenericMode"
# How a tensor is made of Python's numbers: memory is allocated, and filled through its address.
FILLED_OUTSIDE = ("aten::empty", "aten::to", "aten::lift_fresh", "aten::detach_")
MAX_BYTES = 1 << 22


class NotCarried(Exception):
    """A sample has no form as a program."""


class Recorder:
    """The program of one call."""

    def __init__(self, device):
        self.device = torch.device(device)
        self.storages, self.inputs, self.calls = [], [], []
        self.by_storage, self.names, self.alive, self.made = {}, {}, [], {}
        self.count = 0

    def name(self, tensor):
        self.alive.append(tensor)
        self.names[id(tensor)] = self.count
        self.count += 1
        return self.count - 1

    def input(self, tensor, role):
        """Enters a tensor that no call made, with its present contents."""
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.layout != torch.strided:
            raise NotCarried(f"a tensor of layout {tensor.layout}")
        if tensor.dtype not in KINDS or tensor.is_quantized or tensor.device.type == "meta":
            raise NotCarried(f"a tensor of {tensor.dtype} on {tensor.device}")
        memory = tensor.untyped_storage()
        at = self.by_storage.get(memory.data_ptr()) if memory.nbytes() else None
        if at is None:
            at = len(self.storages)
            self.by_storage[memory.data_ptr()] = at
            if memory.nbytes() > MAX_BYTES:
                raise NotCarried("a tensor of more than 4 MiB")
            data = bytes(memory.cpu().tolist()) if memory.nbytes() else b""
            self.storages.append((KINDS[tensor.dtype], len(data) // tensor.element_size(), data))
        if self.storages[at][0] != KINDS[tensor.dtype]:
            raise NotCarried("one memory in two element types")
        bits = (" conj" if tensor.is_conj() else "") + (" neg" if tensor.is_neg() else "")
        number = self.name(tensor)
        self.inputs.append(f"%{number} = {role} s{at} {list(tensor.shape)} strides {list(tensor.stride())} "
                           f"offset {tensor.storage_offset()}{bits}")
        return number

    def tensor(self, tensor):
        number = self.names.get(id(tensor))
        if number is None and tensor.layout == torch.strided:
            # Python gets another tensor on the memory of one that was made of nothing.
            number = self.made.get(place(tensor))
        return self.input(tensor, "param") if number is None else number

    def arg(self, value, type_):
        if value is None or isinstance(value, torch.Generator):
            return "none"
        if isinstance(value, torch.Tensor):
            return f"%{self.tensor(value)}"
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, (int, float, complex)) and "Tensor" in str(type_):
            raise NotCarried("a number as a tensor")
        if isinstance(value, int):
            return f"{float(value)!r}" if str(type_) in ("float", "Optional[float]") else str(value)
        if isinstance(value, float):
            return repr(value)
        if isinstance(value, complex):
            return f"complex({value.real!r}; {value.imag!r})"
        if isinstance(value, str):
            return '"' + value + '"'
        if isinstance(value, torch.dtype) and value in KINDS:
            return KINDS[value]
        if isinstance(value, torch.memory_format):
            return f"format{MEMORY_FORMATS[value]}"
        if isinstance(value, torch.layout):
            return f"layout{LAYOUTS[value]}"
        if isinstance(value, torch.device):
            return "@device" if value.type == self.device.type else str(value)
        if isinstance(value, (list, tuple)):
            return self.list(value, str(type_))
        raise NotCarried(f"an argument of type {type(value).__name__}")

    def list(self, values, type_):
        if "Tensor" in type_:
            return "{" + ", ".join(self.arg(v, None) for v in values) + "}"
        if not all(isinstance(v, (bool, int, float)) for v in values):
            raise NotCarried(f"a list of {type_}")
        floats = any(isinstance(v, float) for v in values) or "float" in type_
        items = [repr(float(v)) if floats else self.arg(v, None) for v in values]
        return "[" + ", ".join(items) + "]"

    def call(self, op, args, kwargs):
        if op._schema.name == "aten::lift_fresh":
            # The argument was filled through its address: it is a constant, and so is what this returns.
            result = op(*args, **kwargs)
            self.names.pop(id(args[0]), None)
            self.names.pop(id(result), None)
            self.made[place(result)] = self.input(result, "param")
            return result
        op = scalar_overload(op, args)
        texts = [self.arg(value, a.type) for a, value in leading(op._schema.arguments, args, kwargs)]
        result = op(*args, **kwargs)
        results = []
        for declared, value in zip(op._schema.returns, result if len(op._schema.returns) > 1 else (result,)):
            if str(declared.type) in ("Tensor", "Optional[Tensor]"):
                results.append(value)
            elif str(declared.type) == "List[Tensor]":
                results.extend(value)
        made = not tensors_of((args, kwargs))
        names = [self.result(value, made) for value in results]
        overload = "" if op._overloadname == "default" else op._overloadname
        name = f"{op._schema.name}.{overload}".removeprefix("aten::")
        self.calls.append((op._schema.name, names, f"{name}({', '.join(texts)})"))
        return result

    def result(self, value, made):
        if value is None:
            self.count += 1
            return self.count - 1
        known = self.names.get(id(value))
        number = self.name(value)
        if made and value.layout == torch.strided:
            self.made[place(value)] = number
        if known is not None:
            self.names[id(value)] = known
        return number

    def text(self, outputs):
        outputs = [self.tensor(t) for t in outputs]
        calls = self.live_calls(outputs)
        lines = [f"s{at} = {kind} {size} data {data.hex()}" for at, (kind, size, data) in enumerate(self.storages)]
        lines += self.inputs
        lines += [f"{' '.join(f'%{n}' for n in names)} = {text}" for _, names, text in calls]
        return "\n".join(lines + ["return " + " ".join(f"%{n}" for n in outputs)])

    def live_calls(self, outputs):
        """All calls but those that only made memory for a constant."""
        used, kept = set(outputs), []
        for op, names, text in reversed(self.calls):
            if op in FILLED_OUTSIDE and not used.intersection(names):
                continue
            kept.append((op, names, text))
            words = text.replace("(", " ").replace(")", " ").replace(",", " ").replace("{", " ").replace("}", " ")
            used.update(int(w[1:]) for w in words.split() if w.startswith("%"))
        return kept[::-1]


def place(tensor):
    return (tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride(), tensor.storage_offset())


def scalar_overload(op, args):
    """The overload that takes a number where the argument is one in the place of a tensor."""
    types = [str(a.type) for a in op._schema.arguments]
    numbers = [isinstance(v, (bool, int, float, complex)) and t == "Tensor" for v, t in zip(args, types)]
    if not any(numbers):
        return op
    for name in op._overloadpacket.overloads():
        other = getattr(op._overloadpacket, name)
        theirs = [str(a.type) for a in other._schema.arguments]
        fits = len(theirs) == len(types) and [a.name for a in other._schema.arguments] == [
            a.name for a in op._schema.arguments]
        number = [t in ("number", "Scalar") for t in theirs]
        if fits and all((t == u) != n or (n and u) for t, u, n in zip(theirs[: len(args)], types, numbers)) and all(
                n == w for n, w in zip(number, numbers)):
            return other
    return op


def leading(declared, args, kwargs):
    """The arguments in the order of the schema up to the last that is given."""
    given = dict(zip((a.name for a in declared), args)) | kwargs
    last = max((at for at, a in enumerate(declared) if a.name in given), default=-1)
    return [(a, given[a.name] if a.name in given else a.default_value) for a in declared[: last + 1]]


recorder = None
library = None


def listen():
    """Has libtorch's dispatcher call `fallback`, once in a process."""
    global library
    if library is None:
        library = torch.library.Library("_", "IMPL")
        library.fallback(fallback, KEY)


def fallback(op, *args, **kwargs):
    torch._C._dispatch_tls_set_dispatch_key_included(KEY, False)
    try:
        return recorder.call(op, args, kwargs)
    finally:
        torch._C._dispatch_tls_set_dispatch_key_included(KEY, True)


def tensors_of(tree):
    return [leaf for leaf in tree_flatten(tree)[0] if isinstance(leaf, torch.Tensor)]


def program(op, sample, device):
    """The text of the call's program."""
    global recorder
    recorder = Recorder(device)
    for tensor in tensors_of((sample.input, sample.args, sample.kwargs)):
        if id(tensor) not in recorder.names:
            recorder.input(tensor, "input")
    torch.manual_seed(0)
    torch._C._dispatch_tls_set_dispatch_key_included(KEY, True)
    try:
        result = op(sample.input, *sample.args, **sample.kwargs)
    finally:
        torch._C._dispatch_tls_set_dispatch_key_included(KEY, False)
    outputs = tensors_of(result)
    if not outputs:
        raise NotCarried("no result is a tensor")
    return recorder.text(outputs)


def samples_of(op, dtype, device, most):
    """At most `most` samples of an operator (0: all), in pairs of a label and what makes the sample."""
    torch.manual_seed(0)
    random.seed(0)
    samples = list(enumerate(op.sample_inputs(device, dtype, requires_grad=False)))
    step = max(len(samples) // most, 1) if most else 1
    for at, sample in samples[::step][: most or None]:
        yield f"{at} contiguous", lambda s=sample: s
        yield f"{at} strided", lambda s=sample: s.noncontiguous()


def programs_of(op, name, device, most):
    """The named programs of an operator, and the reasons for those that there are not."""
    done, left_out = [], []
    full = f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name
    try:
        for label, make in samples_of(op, DTYPES[name], device, most):
            label = f"{full} {name} {label}"
            try:
                done.append(f"sample {label}\n{program(op, make(), device)}\n")
            except NotCarried as error:
                left_out.append(f"{label}: {error}")
            except Exception as error:
                left_out.append(f"{label}: libtorch: {type(error).__name__}: {first_line(error)}")
    except Exception as error:
        left_out.append(f"{full} {name}: no samples: {type(error).__name__}: {first_line(error)}")
    return done, left_out


def first_line(error):
    return (str(error).splitlines() or [""])[0][:200]


def part(job):
    """Writes the programs of one element type of a part of all operators."""
    name, device, only, most, at, parts = job
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    from torch.testing._internal.common_methods_invocations import op_db

    listen()
    kind = torch.device(device).type
    chosen = [op for op in op_db if DTYPES[name] in op.supported_dtypes(kind) and op.name.startswith(only)]
    done, left_out = [], []
    with torch.no_grad():
        for op in chosen[at::parts]:
            more, fewer = programs_of(op, name, device, most)
            done += more
            left_out += fewer
    return name, done, left_out


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--dtypes", default="f32,bf16,f16,i64,bool,complex64")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--only", default="")
    parser.add_argument("--most", type=int, default=0, help="samples of an operator and type; 0 for all")
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    parts = max(options.jobs, 1)
    jobs = [(name, options.device, options.only, options.most, at, parts)
            for name in options.dtypes.split(",") for at in range(parts)]
    done, left_out = collections.defaultdict(list), []
    with multiprocessing.get_context("spawn").Pool(parts) as pool:
        for at, (name, programs, reasons) in enumerate(pool.imap(part, jobs), 1):
            done[name] += programs
            left_out += reasons
            if at % parts == 0:
                (options.out / f"{name}.txt").write_text("".join(done[name]))
                print(f"{name}: {len(done.pop(name))} programs", flush=True)
    (options.out / "not-carried.txt").write_text("\n".join(left_out) + "\n")
    print(f"not carried: {len(left_out)}")


if __name__ == "__main__":
    main()
