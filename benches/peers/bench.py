"""The peers of `tilefuse bench` in Python: Inductor (torch.compile) and XLA (through JAX), whichever is installed.

The program starts this with a device (cpu, cuda or cuda:N) and sends one JSON object a line; each is answered by one:

    {"ask": "who"}                                   -> {"peers": [...], "versions": {name: text}}
    {"ask": "prepare", "model": m, "inputs": [...]}  -> {"ready": [peer, ...], "failed": {peer: why}}
    {"ask": "turn", "peer": p}                       -> {"us": [sample, ...]}

A request that cannot be carried out is answered by {"error": why}. On a GPU samples are times between events with the
cache emptied before each call; XLA offers no events, so that its samples are the host's clock around a call that is
waited for, launch included.
"""
import json
import os
import sys
import time

DEVICE = sys.argv[1] if len(sys.argv) > 1 else "cpu"
GPU = DEVICE.startswith("cuda")
os.environ.setdefault("JAX_PLATFORMS", "cuda" if GPU else "cpu")
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
# Answers go where standard output was; what libraries print does not.
ANSWERS = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)

READY, COLD = {}, []


def one_line(error):
    return f"{type(error).__name__}: {error}".splitlines()[0][:200]


# What the kernels of the zoo compute, for Inductor.


def torch_kernels():
    import torch
    import torch.nn.functional as F

    def rotate(x):
        half = x.shape[-1] // 2
        return torch.cat([-x[..., half:], x[..., :half]], dim=-1)

    def add_rms_norm(x, r, w):
        y = x + r
        mean = y.float().pow(2).mean(-1, keepdim=True)
        return y, y * torch.rsqrt(mean + 1e-6).to(y.dtype) * w

    def batch_norm_relu(x, mean, var, weight, bias):
        return F.relu(F.batch_norm(x, mean, var, weight, bias, training=False))

    return {
        "vector_add": lambda a, b: a + b,
        "bias_gelu_residual": lambda x, y, b: F.gelu(x + b, approximate="tanh") + y,
        "swiglu_act": lambda x, y: F.silu(x) * y,
        "rope": lambda q, cos, sin: q * cos + rotate(q) * sin,
        "batch_norm_relu": batch_norm_relu,
        "add_rms_norm_residual": add_rms_norm,
        "softmax": lambda x: F.softmax(x, dim=-1),
        "layer_norm": lambda x, w, b: F.layer_norm(x, x.shape[-1:], w, b),
        "cross_entropy": lambda x, t: F.cross_entropy(x.float(), t),
        "sum": lambda x: x.float().sum(),
        "sum_dim0": lambda x: x.sum(0),
        "transpose_add": lambda x, y: x.t() + y,
    }


# The same for XLA.


def jax_kernels():
    import jax
    import jax.numpy as jnp

    f32 = jnp.float32

    def rotate(x):
        first, second = jnp.split(x, 2, axis=-1)
        return jnp.concatenate([-second, first], axis=-1)

    def add_rms_norm(x, r, w):
        y = x + r
        mean = jnp.mean(jnp.square(y.astype(f32)), axis=-1, keepdims=True)
        return y, y * jax.lax.rsqrt(mean + 1e-6).astype(y.dtype) * w

    def layer_norm(x, w, b):
        wide = x.astype(f32)
        centred = wide - wide.mean(-1, keepdims=True)
        normed = centred * jax.lax.rsqrt(jnp.square(centred).mean(-1, keepdims=True) + 1e-5)
        return (normed * w.astype(f32) + b.astype(f32)).astype(x.dtype)

    def batch_norm_relu(x, mean, var, weight, bias):
        scale = weight * jax.lax.rsqrt(var + 1e-5)
        return jax.nn.relu(x * scale[:, None, None] + (bias - mean * scale)[:, None, None])

    def cross_entropy(x, t):
        logs = jax.nn.log_softmax(x.astype(f32), axis=-1)
        return -jnp.take_along_axis(logs, t[:, None], axis=1).mean()

    return {
        "vector_add": lambda a, b: a + b,
        "bias_gelu_residual": lambda x, y, b: jax.nn.gelu(x + b, approximate=True) + y,
        "swiglu_act": lambda x, y: jax.nn.silu(x) * y,
        "rope": lambda q, cos, sin: q * cos + rotate(q) * sin,
        "batch_norm_relu": batch_norm_relu,
        "add_rms_norm_residual": add_rms_norm,
        "softmax": lambda x: jax.nn.softmax(x.astype(f32), axis=-1).astype(x.dtype),
        "layer_norm": layer_norm,
        "cross_entropy": cross_entropy,
        "sum": lambda x: x.astype(f32).sum(),
        "sum_dim0": lambda x: x.sum(0),
        "transpose_add": lambda x, y: x.T + y,
    }


def torch_model(name):
    """A module like that model of the zoo and how it is called, or None."""
    vision = {"resnet18": "resnet18", "resnet50": "resnet50", "vit_b_16": "vit_b_16", "mobilenet_v2": "mobilenet_v2"}
    if name in vision:
        import torchvision.models

        return getattr(torchvision.models, vision[name])(weights=None)
    if name in ("gpt2", "gpt2-sdpa"):
        import transformers as t

        return First(t.GPT2LMHeadModel(t.GPT2Config(use_cache=False)), "logits")
    if name in ("bert", "bert-sdpa"):
        import transformers as t

        return First(t.BertModel(t.BertConfig(), add_pooling_layer=False), "last_hidden_state")
    return None


class First:
    """A model of transformers as a function to its first result."""

    def __init__(self, model, key):
        self.model, self.key = model, key

    def eval(self):
        self.model.eval()
        return self

    def to(self, *where):
        self.model.to(*where)
        return self

    def __call__(self, ids, *rest):
        return getattr(self.model(ids), self.key)


def torch_inputs(inputs):
    import torch

    kinds = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32, "i64": torch.int64}
    made = []
    for spec in inputs:
        kind, shape = kinds[spec["dtype"]], spec["shape"]
        if spec["range"]:
            made.append(torch.randint(*spec["range"], shape, device=DEVICE))
        else:
            made.append(torch.randn(shape, device=DEVICE).to(kind))
    return made


def channels(inputs, module):
    """Mean, variance, weight and bias of a batch norm, which the zoo keeps in its model."""
    count, kind = inputs[0].shape[1], inputs[0].dtype
    return [module.ones(count, dtype=kind) * value for value in (0.1, 1.2, 0.9, 0.05)]


def prepare_inductor(name, inputs):
    import torch

    args = torch_inputs(inputs)
    kernel = torch_kernels().get(name.removeprefix("kernel:")) if name.startswith("kernel:") else None
    if name == "kernel:batch_norm_relu":
        args += [t.to(DEVICE) for t in channels(args, torch)]
    if kernel is None:
        module = torch_model(name)
        if module is None:
            raise NotImplementedError("it has no such model")
        kernel = module.eval().to(DEVICE, args[0].dtype if args[0].is_floating_point() else torch.float32)
        if not args[0].is_floating_point() and GPU:
            kernel = kernel.to(torch.bfloat16)
    torch._dynamo.reset()
    compiled = torch.compile(kernel, dynamic=False)
    compiled(*args)
    compiled(*args)
    return lambda: compiled(*args)


def prepare_xla(name, inputs):
    import jax
    import jax.numpy as jnp

    kernel = jax_kernels().get(name.removeprefix("kernel:")) if name.startswith("kernel:") else None
    if kernel is None:
        raise NotImplementedError("it has no such model")
    kinds = {"bf16": jnp.bfloat16, "f16": jnp.float16, "f32": jnp.float32}
    args = []
    for position, spec in enumerate(inputs):
        key = jax.random.PRNGKey(position)
        if spec["range"]:
            args.append(jax.random.randint(key, spec["shape"], *spec["range"]))
        else:
            args.append(jax.random.normal(key, spec["shape"], kinds[spec["dtype"]]))
    if name == "kernel:batch_norm_relu":
        args += channels(args, jnp)
    compiled = jax.jit(kernel).lower(*args).compile()
    return lambda: jax.block_until_ready(compiled(*args))


def clocked(call):
    """The host's clock around calls, several together where one is short."""
    samples, calls = [], 1
    while len(samples) < 4:
        start = time.perf_counter()
        for _ in range(calls):
            call()
        seconds = time.perf_counter() - start
        if seconds < 2e-4 and calls < 1024:
            calls *= 2
        else:
            samples.append(seconds / calls * 1e6)
        if seconds > 0.05:
            break
    return samples


def between_events(call):
    import torch

    if not COLD:
        COLD.append(torch.empty(256 << 20, dtype=torch.uint8, device=DEVICE))
    pairs = []
    for _ in range(10):
        COLD[0].zero_()
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        before.record()
        call()
        after.record()
        pairs.append((before, after))
    torch.cuda.synchronize()
    return [before.elapsed_time(after) * 1e3 for before, after in pairs]


PEERS = {"inductor": prepare_inductor, "xla": prepare_xla}


def who():
    peers, versions = [], {}
    for peer, module in (("inductor", "torch"), ("xla", "jax")):
        try:
            library = __import__(module)
            if module == "torch" and GPU:
                library.cuda.set_device(DEVICE if ":" in DEVICE else 0)
            peers.append(peer)
            versions[peer] = f"{module} {library.__version__}"
        except Exception as error:
            versions[peer] = f"none: {one_line(error)}"
    return {"peers": peers, "versions": versions}


def prepare(model, inputs):
    READY.clear()
    failed = {}
    for peer in who()["peers"]:
        try:
            READY[peer] = PEERS[peer](model, inputs)
        except Exception as error:
            failed[peer] = one_line(error)
    return {"ready": list(READY), "failed": failed}


def turn(peer):
    call = READY[peer]
    if peer != "inductor":
        return {"us": clocked(call)}
    import torch

    with torch.no_grad():
        return {"us": between_events(call) if GPU else clocked(call)}


def answer(request):
    ask = request.pop("ask")
    try:
        import contextlib

        quiet = contextlib.nullcontext()
        if ask == "prepare" and "torch" in sys.modules:
            quiet = sys.modules["torch"].no_grad()
        with quiet:
            return {"who": who, "prepare": prepare, "turn": turn}[ask](**request)
    except Exception as error:
        return {"error": one_line(error)}


for line in sys.stdin:
    print(json.dumps(answer(json.loads(line))), file=ANSWERS, flush=True)
