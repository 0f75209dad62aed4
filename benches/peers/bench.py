"""The peers of `tilefuse bench` in Python, whichever is installed: Inductor (torch.compile), XLA (through JAX), and on a
CPU ONNX Runtime and OpenVINO, which take the same networks as ONNX files.

The program starts this with a device (cpu, cuda or cuda:N) and sends one JSON object a line; each is answered by one:

    {"ask": "who"}                                   -> {"peers": [...], "versions": {name: text}}
    {"ask": "prepare", "model": m, "inputs": [...], "peers": [peer, ...]}  -> {"ready": [peer, ...], "failed": {peer: why},
                                                         "seconds": {peer: load or compile, and the first call}}
    {"ask": "turn", "peer": p}                       -> {"us": [sample, ...]}

A model is one of the zoo by its name or, where the request says "file": true, a TorchScript file by its path, whose
weights take the type of "dtype" where that is given. Inductor gets such a file as torch.export's program of it, ONNX Runtime as an
ONNX file, and XLA does not take it.

The seconds are without those in which weights are drawn. A request that cannot be carried out is answered by
{"error": why}. On a GPU samples are times between events with the cache emptied before each call; XLA offers no events,
so that its samples are the host's clock around a call that is waited for, launch included.
"""
import json
import math
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
# Width, width inside the feed-forward network, blocks and heads of the decoders that are like Llama.
LLAMAS = {"llama": (768, 2048, 12, 12), "llama1b": (2048, 5632, 22, 32)}
# Threads that each of them may use.
THREADS = os.cpu_count() or 1


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

    def layer_norm_backward(x, d, w):
        x, d = x.float(), d.float()
        off = x - x.mean(-1, keepdim=True)
        scale = torch.rsqrt(off.square().mean(-1, keepdim=True) + 1e-5)
        normal, g = off * scale, d * w.float()
        back = g - g.mean(-1, keepdim=True) - normal * (g * normal).mean(-1, keepdim=True)
        return (back * scale).to(w.dtype), (d * normal).sum(0).to(w.dtype), d.sum(0).to(w.dtype)

    def chain12(x):
        return (((x * 2 + 1).sigmoid() * x).tanh() - x.abs().sqrt()).exp().clamp(-1, 5) / (x * x + 1)

    return {
        "gelu_erf": lambda x: F.gelu(x),
        "chain12": chain12,
        "add_rms_norm": lambda x, r, w: (x + r) * torch.rsqrt((x + r).pow(2).mean(-1, keepdim=True) + 1e-6) * w,
        "linear_bias_gelu": lambda x, w, b: F.gelu(F.linear(x, w, b), approximate="tanh"),
        "attention": lambda q, k, v: F.scaled_dot_product_attention(q, k, v),
        "grouped_attention": lambda q, k, v: F.scaled_dot_product_attention(
            q, *(x.repeat_interleave(4, dim=1) for x in (k, v))
        ),
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
        "row_column_sums": lambda x: (x.sum(1), x.sum(0)),
        "layer_norm_backward": layer_norm_backward,
        "transpose_add": lambda x, y: x.t() + y,
        "transpose_contiguous_add": lambda x, y: x.t().contiguous() + y,
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

    def layer_norm(x, w, b, eps=1e-5):
        wide = x.astype(f32)
        centred = wide - wide.mean(-1, keepdims=True)
        normed = centred * jax.lax.rsqrt(jnp.square(centred).mean(-1, keepdims=True) + eps)
        return (normed * w.astype(f32) + b.astype(f32)).astype(x.dtype)

    def batch_norm_relu(x, mean, var, weight, bias):
        scale = weight * jax.lax.rsqrt(var + 1e-5)
        return jax.nn.relu(x * scale[:, None, None] + (bias - mean * scale)[:, None, None])

    def cross_entropy(x, t):
        logs = jax.nn.log_softmax(x.astype(f32), axis=-1)
        return -jnp.take_along_axis(logs, t[:, None], axis=1).mean()

    def layer_norm_backward(x, d, w):
        x, d, kind = x.astype(f32), d.astype(f32), w.dtype
        off = x - x.mean(-1, keepdims=True)
        scale = jax.lax.rsqrt(jnp.square(off).mean(-1, keepdims=True) + 1e-5)
        normal, g = off * scale, d * w.astype(f32)
        back = g - g.mean(-1, keepdims=True) - normal * (g * normal).mean(-1, keepdims=True)
        return (back * scale).astype(kind), (d * normal).sum(0).astype(kind), d.sum(0).astype(kind)

    def chain12(x):
        gated = jnp.tanh(jax.nn.sigmoid(x * 2 + 1) * x)
        return jnp.clip(jnp.exp(gated - jnp.sqrt(jnp.abs(x))), -1, 5) / (x * x + 1)

    def attention(q, k, v):
        scores = q @ k.swapaxes(-1, -2) * q.shape[-1] ** -0.5
        return jax.nn.softmax(scores, axis=-1) @ v

    def plain_rms_norm(x, r, w):
        return (x + r) * jax.lax.rsqrt(((x + r) ** 2).mean(-1, keepdims=True) + 1e-6) * w

    return {
        "gelu_erf": lambda x: jax.nn.gelu(x, approximate=False),
        "chain12": chain12,
        "add_rms_norm": plain_rms_norm,
        "linear_bias_gelu": lambda x, w, b: jax.nn.gelu(x @ w.T + b, approximate=True),
        "attention": attention,
        "grouped_attention": lambda q, k, v: attention(q, *(jnp.repeat(x, 4, axis=1) for x in (k, v))),
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
        "row_column_sums": lambda x: (x.sum(1), x.sum(0)),
        "layer_norm_backward": layer_norm_backward,
        "transpose_add": lambda x, y: x.T + y,
        "transpose_contiguous_add": lambda x, y: x.T + y,
    }


def torch_networks():
    """Networks that no library has as the zoo has them. Attention is the library's own call in all of them, also where
    the zoo writes it out."""
    import torch
    import torch.nn as nn
    import torch.nn.functional as F

    class Attention(nn.Module):
        """Attention of a sequence with itself. Queries, keys and values come from one product or from three."""

        def __init__(self, width, heads, products):
            super().__init__()
            self.heads = heads
            self.inward = nn.ModuleList(nn.Linear(width, 3 * width // products) for _ in range(products))
            self.outward = nn.Linear(width, width)

        def forward(self, x, bias=None):
            parts = [part for linear in self.inward for part in linear(x).chunk(3 // len(self.inward), -1)]
            q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
            mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
            return self.outward(mixed.transpose(1, 2).flatten(2))

    def feed_forward(width, wide):
        return nn.Sequential(nn.Linear(width, wide), nn.GELU(), nn.Linear(wide, width))

    class Bert(nn.Module):
        def __init__(self):
            super().__init__()
            self.tables = nn.ModuleList(nn.Embedding(rows, 768) for rows in (30522, 512, 2))
            self.norm, self.pooler = nn.LayerNorm(768, 1e-12), nn.Linear(768, 768)
            norm = lambda: nn.LayerNorm(768, 1e-12)
            layer = lambda: nn.ModuleList([Attention(768, 12, 3), norm(), feed_forward(768, 3072), norm()])
            self.layers = nn.ModuleList(layer() for _ in range(12))

        def forward(self, ids, types=None, mask=None):
            tokens, positions, kinds = self.tables
            types = torch.zeros_like(ids) if types is None else types
            x = self.norm(tokens(ids) + kinds(types) + positions.weight[: ids.shape[1]])
            bias = None
            if mask is not None:
                bias = (1.0 - mask[:, None, None].to(x.dtype)) * torch.finfo(x.dtype).min
            for attention, first, mlp, second in self.layers:
                x = first(attention(x, bias) + x)
                x = second(mlp(x) + x)
            return x, torch.tanh(self.pooler(x[:, 0]))

    class Vit(nn.Module):
        def __init__(self):
            super().__init__()
            self.patches = nn.Conv2d(3, 768, 16, stride=16)
            self.token = nn.Parameter(torch.zeros(1, 1, 768))
            self.positions = nn.Parameter(torch.randn(1, 197, 768) * 0.02)
            norm = lambda: nn.LayerNorm(768, 1e-6)
            layer = lambda: nn.ModuleList([norm(), Attention(768, 12, 1), norm(), feed_forward(768, 3072)])
            self.layers = nn.ModuleList(layer() for _ in range(12))
            self.norm, self.head = norm(), nn.Linear(768, 1000)

        def forward(self, x):
            x = self.patches(x).flatten(2).transpose(1, 2)
            x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.positions
            for first, attention, second, mlp in self.layers:
                x = x + attention(first(x))
                x = x + mlp(second(x))
            return self.head(self.norm(x)[:, 0])

    class Mixer(nn.Module):
        def __init__(self):
            super().__init__()
            self.patches = nn.Conv2d(3, 768, 16, stride=16)
            norm = lambda: nn.LayerNorm(768, 1e-6)
            layer = lambda: nn.ModuleList([norm(), feed_forward(196, 384), norm(), feed_forward(768, 3072)])
            self.layers = nn.ModuleList(layer() for _ in range(12))
            self.norm, self.head = norm(), nn.Linear(768, 1000)

        def forward(self, x):
            x = self.patches(x).flatten(2).transpose(1, 2)
            for first, tokens, second, channels in self.layers:
                x = x + tokens(first(x).transpose(1, 2)).transpose(1, 2)
                x = x + channels(second(x))
            return self.head(self.norm(x).mean(1))

    class Residual(nn.Module):
        """A residual block of the UNet, and attention after it."""

        def __init__(self, inputs, width, attention):
            super().__init__()
            conv = lambda channels, size: nn.Conv2d(channels, width, size, padding=size // 2)
            self.first = nn.Sequential(nn.GroupNorm(32, inputs), nn.SiLU(), conv(inputs, 3))
            self.time = nn.Sequential(nn.SiLU(), nn.Linear(512, width))
            self.second = nn.Sequential(nn.GroupNorm(32, width), nn.SiLU(), conv(width, 3))
            self.shortcut = conv(inputs, 1) if inputs != width else nn.Identity()
            self.norm = nn.GroupNorm(32, width) if attention else None
            self.attention = Attention(width, 8, 3) if attention else None

        def forward(self, x, time):
            y = self.second(self.first(x) + self.time(time)[:, :, None, None])
            x = self.shortcut(x) + y
            if self.attention is None:
                return x
            mixed = self.attention(self.norm(x).flatten(2).transpose(1, 2))
            return mixed.transpose(1, 2).reshape(x.shape) + x

    class Unet(nn.Module):
        def __init__(self):
            super().__init__()
            conv = lambda inputs, outputs, stride=1: nn.Conv2d(inputs, outputs, 3, stride, padding=1)
            self.time = nn.Sequential(nn.Linear(128, 512), nn.SiLU(), nn.Linear(512, 512))
            self.first, skips = conv(4, 128), [128]
            self.down, self.up, inputs = nn.ModuleList(), nn.ModuleList(), 128
            for width in (128, 256, 512):
                for _ in range(2):
                    self.down.append(Residual(inputs, width, width > 128))
                    skips, inputs = skips + [width], width
                if width < 512:
                    self.down.append(conv(width, width, 2))
                    skips = skips + [width]
            self.middle = nn.ModuleList([Residual(512, 512, True), Residual(512, 512, False)])
            for width in (512, 256, 128):
                for _ in range(3):
                    self.up.append(Residual(inputs + skips.pop(), width, width > 128))
                    inputs = width
                if width > 128:
                    self.up.append(nn.Sequential(nn.Upsample(scale_factor=2.0), conv(width, width)))
            self.last = nn.Sequential(nn.GroupNorm(32, 128), nn.SiLU(), conv(128, 4))

        def forward(self, x, times):
            steps = torch.exp(torch.arange(64, device=x.device) * (-math.log(10000.0) / 64))
            angles = times.float()[:, None] * steps
            time = self.time(torch.cat([angles.cos(), angles.sin()], -1).to(x.dtype))
            x = self.first(x)
            skips = [x]
            for part in self.down:
                x = part(x, time) if isinstance(part, Residual) else part(x)
                skips.append(x)
            for part in self.middle:
                x = part(x, time)
            for part in self.up:
                x = part(torch.cat([x, skips.pop()], 1), time) if isinstance(part, Residual) else part(x)
            return self.last(x)

    return {"bert": Bert, "vit_b_16": Vit, "mixer_b_16": Mixer, "unet": Unet}


def torch_model(name):
    """A module like that model of the zoo, or None."""
    import torch.nn as nn

    name = name.removesuffix("-sdpa").removesuffix("-inplace")
    if name == "mlp8x1024":
        layer = lambda: (nn.Linear(1024, 1024), nn.GELU(approximate="tanh"), nn.LayerNorm(1024))
        return nn.Sequential(*[part for _ in range(8) for part in layer()])
    if name == "kernel:conv_bn_relu":
        return nn.Sequential(nn.Conv2d(64, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU())
    if name == "kernel:conv_transpose_relu":
        return nn.Sequential(nn.ConvTranspose2d(64, 64, 4, stride=2, padding=1), nn.ReLU())
    if name in ("resnet18", "resnet50", "mobilenet_v2"):
        import torchvision.models

        return getattr(torchvision.models, name)(weights=None)
    if name == "gpt2":
        import transformers as t

        return First(t.GPT2LMHeadModel(t.GPT2Config(use_cache=False)), "logits")
    if name in LLAMAS:
        import transformers as t

        hidden, wide, layers, heads = LLAMAS[name]
        sizes = dict(hidden_size=hidden, intermediate_size=wide, num_hidden_layers=layers)
        grouped = dict(num_attention_heads=heads, num_key_value_heads=4, max_position_embeddings=2048)
        config = t.LlamaConfig(vocab_size=32000, rms_norm_eps=1e-5, use_cache=False, **sizes, **grouped)
        return First(t.LlamaForCausalLM(config), "logits")
    network = torch_networks().get(name)
    return network() if network else None


def First(model, key):
    """A model of transformers as a module to its first result."""
    import torch.nn as nn

    class Module(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, ids, *rest):
            return getattr(self.model(ids), key)

    return Module()


def torch_kind(name):
    import torch

    floats = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32, "f64": torch.float64}
    return {**floats, "i64": torch.int64, "i32": torch.int32, "bool": torch.bool}[name]


def torch_inputs(inputs):
    import torch

    made = []
    for spec in inputs:
        kind, shape = torch_kind(spec["dtype"]), spec["shape"]
        if spec["range"]:
            made.append(torch.randint(*spec["range"], shape, device=DEVICE).to(kind))
        else:
            made.append(torch.randn(shape, device=DEVICE).to(kind))
    return made


class File(str):
    """The path of a TorchScript file, and the type of its weights where that is not the file's."""

    dtype = None


def torch_file(path, inputs):
    """The module of a TorchScript file, and inputs."""
    import torch

    module = torch.jit.load(path, map_location=DEVICE).eval()
    return module.to(torch_kind(path.dtype)) if path.dtype else module, torch_inputs(inputs)


def is_scripted(kernel):
    import torch

    return isinstance(kernel, torch.jit.ScriptModule)


def exported(kernel, args):
    """What Dynamo can look into: it runs the module of a TorchScript file as it is, and compiles nothing of it."""
    if not is_scripted(kernel):
        return kernel
    from torch._export.converter import TS2EPConverter

    return TS2EPConverter(kernel, tuple(args)).convert().module()


def channels(inputs, module):
    """Mean, variance, weight and bias of a batch norm, which the zoo keeps in its model."""
    count, kind = inputs[0].shape[1], inputs[0].dtype
    return [module.ones(count, dtype=kind) * value for value in (0.1, 1.2, 0.9, 0.05)]


def torch_case(name, inputs):
    """What that model of the zoo is in torch, and inputs."""
    import torch

    if isinstance(name, File):
        return torch_file(name, inputs)
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
    return kernel, args


def prepare_inductor(kernel, args):
    import torch

    torch._dynamo.reset()
    compiled = torch.compile(exported(kernel, args), dynamic=False)
    return lambda: compiled(*args)


def channels_last_case(name, inputs):
    """As `torch_case`, with images and weights of convolutions in the layout that tensor cores read."""
    import torch

    kernel, args = torch_case(name, inputs)
    if isinstance(kernel, torch.nn.Module):
        kernel = kernel.to(memory_format=torch.channels_last)
        images = [x.dim() == 4 and x.is_floating_point() for x in args]
        args = [x.contiguous(memory_format=torch.channels_last) if i else x for x, i in zip(args, images)]
    return kernel, args


def prepare_cudagraphs(kernel, args, mode="reduce-overhead"):
    """With calls as CUDA graphs."""
    import torch

    torch._dynamo.reset()
    compiled = torch.compile(exported(kernel, args), dynamic=False, mode=mode)

    def call():
        torch.compiler.cudagraph_mark_step_begin()
        return compiled(*args)

    return call


def prepare_max_autotune(kernel, args):
    """The same with kernels of products and convolutions chosen by measuring, which takes minutes for a model."""
    return prepare_cudagraphs(kernel, args, "max-autotune")


def as_onnx(kernel, args):
    """Path of an ONNX file of a model, and its inputs as arrays."""
    import tempfile
    import torch

    if not isinstance(kernel, torch.nn.Module):
        function = kernel
        kernel = type("Kernel", (torch.nn.Module,), {"forward": lambda self, *xs: function(*xs)})()
    path = os.path.join(tempfile.mkdtemp(), "model.onnx")
    torch.onnx.export(kernel, tuple(args), path, dynamo=False, opset_version=17)
    return path, [x.numpy() for x in args]


def prepare_onnxruntime(kernel, args):
    import onnxruntime

    path, arrays = as_onnx(kernel, args)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = THREADS
    session = onnxruntime.InferenceSession(path, options)
    feed = {i.name: x for i, x in zip(session.get_inputs(), arrays)}
    return lambda: session.run(None, feed)


def prepare_openvino(kernel, args):
    import openvino

    if is_scripted(kernel):
        # It has a reader of its own of such modules.
        model, arrays = openvino.convert_model(kernel, example_input=tuple(args)), [x.numpy() for x in args]
    else:
        model, arrays = as_onnx(kernel, args)
    hints = {"INFERENCE_NUM_THREADS": THREADS, "INFERENCE_PRECISION_HINT": "f32"}
    request = openvino.compile_model(model, "CPU", hints).create_infer_request()
    return lambda: request.infer(arrays)


def jax_networks(kind):
    """The networks of the zoo as functions of `take`, which gives the next weight of a shape, and of inputs."""
    import jax
    import jax.numpy as jnp

    f32 = jnp.float32
    norm = jax_kernels()["layer_norm"]
    relu, relu6, silu = jax.nn.relu, lambda x: jnp.clip(x, 0, 6), jax.nn.silu
    gelu, gelu_tanh = (lambda x: jax.nn.gelu(x, approximate=False)), (lambda x: jax.nn.gelu(x, approximate=True))

    def dense(take, x, width, bias=True):
        y = x @ take(x.shape[-1], width)
        return y + take(width) if bias else y

    def layer_norm(take, x, eps=1e-5):
        return norm(x, take(x.shape[-1], near=1), take(x.shape[-1]), eps)

    def feed_forward(take, x, wide, act):
        return dense(take, act(dense(take, x, wide)), x.shape[-1])

    def mixed(q, k, v, causal=False, bias=None):
        library = "cudnn" if GPU and kind != f32 and q.shape[1] >= 8 and bias is None else None
        y = jax.nn.dot_product_attention(q, k, v, bias, is_causal=causal, implementation=library)
        return y.reshape(*y.shape[:2], -1)

    def attention(take, x, heads, products, causal=False, bias=None):
        """Attention of a sequence with itself. Queries, keys and values come from one product or from three."""
        batch, length, width = x.shape
        wide = [dense(take, x, 3 * width // products) for _ in range(products)]
        parts = [part for y in wide for part in jnp.split(y, 3 // products, axis=-1)]
        return dense(take, mixed(*(p.reshape(batch, length, heads, -1) for p in parts), causal, bias), width)

    # Images are NCHW where they come in, as the zoo's are, and NHWC inside, which XLA prefers.

    def conv(take, x, outputs, size, stride=1, groups=1, bias=True, pad=None):
        kernel = take(size, size, x.shape[-1] // groups, outputs)
        pad = [(size // 2 if pad is None else pad,) * 2] * 2
        layout = dict(dimension_numbers=("NHWC", "HWIO", "NHWC"), feature_group_count=groups)
        y = jax.lax.conv_general_dilated(x, kernel, (stride, stride), pad, **layout)
        return y + take(outputs) if bias else y

    def batch_norm(take, x):
        width = x.shape[-1]
        weight, bias, mean, var = take(width, near=1), take(width), take(width), take(width, near=1)
        scale = weight * jax.lax.rsqrt(var + 1e-5)
        return x * scale + (bias - mean * scale)

    def conv_norm(take, x, outputs, size, stride=1, groups=1):
        return batch_norm(take, conv(take, x, outputs, size, stride, groups, bias=False))

    def group_norm(take, x):
        wide = x.astype(f32).reshape(*x.shape[:3], 32, -1)
        centred = wide - wide.mean((1, 2, 4), keepdims=True)
        normed = centred * jax.lax.rsqrt(jnp.square(centred).mean((1, 2, 4), keepdims=True) + 1e-5)
        weight, bias = take(x.shape[-1], near=1), take(x.shape[-1])
        return (normed.reshape(x.shape) * weight.astype(f32) + bias.astype(f32)).astype(x.dtype)

    def patches(take, x):
        x = conv(take, x.transpose(0, 2, 3, 1), 768, 16, stride=16, pad=0)
        return x.reshape(x.shape[0], 196, 768)

    def mlp(take, x):
        for _ in range(8):
            x = layer_norm(take, gelu_tanh(dense(take, x, 1024)))
        return x

    def gpt2(take, ids):
        tokens = take(50257, 768)
        x = tokens[ids] + take(1024, 768)[: ids.shape[1]]
        for _ in range(12):
            x = x + attention(take, layer_norm(take, x), 12, 1, causal=True)
            x = x + feed_forward(take, layer_norm(take, x), 3072, gelu_tanh)
        return layer_norm(take, x) @ tokens.T

    def llama(sizes):
        hidden, wide, layers, heads = sizes

        def rms(take, x):
            wide = x.astype(f32)
            normed = wide * jax.lax.rsqrt((wide * wide).mean(-1, keepdims=True) + 1e-5)
            return normed.astype(x.dtype) * take(hidden, near=1)

        def turned(x, cos, sin):
            left, right = jnp.split(x, 2, axis=-1)
            return x * cos + jnp.concatenate([-right, left], axis=-1) * sin

        def network(take, ids):
            x = take(32000, hidden)[ids]
            angles = jnp.arange(ids.shape[1])[:, None] * 10000.0 ** (-jnp.arange(0, 64, 2) / 64)
            angles = jnp.concatenate([angles, angles], axis=-1)[:, None]
            cos, sin = jnp.cos(angles).astype(kind), jnp.sin(angles).astype(kind)
            for _ in range(layers):
                y = rms(take, x)
                q, k, v = (dense(take, y, 64 * n, bias=False).reshape(*ids.shape, n, 64) for n in (heads, 4, 4))
                y = mixed(turned(q, cos, sin), turned(k, cos, sin), v, causal=True)
                x = x + dense(take, y, hidden, bias=False)
                y = rms(take, x)
                y = silu(dense(take, y, wide, bias=False)) * dense(take, y, wide, bias=False)
                x = x + dense(take, y, hidden, bias=False)
            return dense(take, rms(take, x), 32000, bias=False)

        return network

    def bert(take, ids, types=None, mask=None):
        types = jnp.zeros_like(ids) if types is None else types
        x = take(30522, 768)[ids] + take(2, 768)[types] + take(512, 768)[: ids.shape[1]]
        x = layer_norm(take, x, 1e-12)
        bias = None if mask is None else (1 - mask[:, None, None].astype(kind)) * jnp.finfo(kind).min
        for _ in range(12):
            x = layer_norm(take, attention(take, x, 12, 3, bias=bias) + x, 1e-12)
            x = layer_norm(take, feed_forward(take, x, 3072, gelu) + x, 1e-12)
        return x, jnp.tanh(dense(take, x[:, 0], 768))

    def vit(take, x):
        x = patches(take, x)
        token = jnp.broadcast_to(take(1, 1, 768), (x.shape[0], 1, 768))
        x = jnp.concatenate([token, x], axis=1) + take(1, 197, 768)
        for _ in range(12):
            x = x + attention(take, layer_norm(take, x, 1e-6), 12, 1)
            x = x + feed_forward(take, layer_norm(take, x, 1e-6), 3072, gelu)
        return dense(take, layer_norm(take, x, 1e-6)[:, 0], 1000)

    def mixer(take, x):
        x = patches(take, x)
        for _ in range(12):
            turned = layer_norm(take, x, 1e-6).swapaxes(1, 2)
            x = x + feed_forward(take, turned, 384, gelu).swapaxes(1, 2)
            x = x + feed_forward(take, layer_norm(take, x, 1e-6), 3072, gelu)
        return dense(take, layer_norm(take, x, 1e-6).mean(1), 1000)

    def resnet(counts, bottleneck):
        def network(take, x):
            x = relu(conv_norm(take, x.transpose(0, 2, 3, 1), 64, 7, 2))
            pad = ((0, 0), (1, 1), (1, 1), (0, 0))
            x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 3, 3, 1), (1, 2, 2, 1), pad)
            for stage, count in enumerate(counts):
                width = 64 << stage
                for i in range(count):
                    stride = 2 if i == 0 and stage else 1
                    if bottleneck:
                        y = relu(conv_norm(take, x, width, 1))
                        y = relu(conv_norm(take, y, width, 3, stride))
                        y = conv_norm(take, y, 4 * width, 1)
                    else:
                        y = conv_norm(take, relu(conv_norm(take, x, width, 3, stride)), width, 3)
                    if x.shape != y.shape:
                        x = conv_norm(take, x, y.shape[-1], 1, stride)
                    x = relu(y + x)
            return dense(take, x.mean((1, 2)), 1000)

        return network

    def mobilenet(take, x):
        x = relu6(conv_norm(take, x.transpose(0, 2, 3, 1), 32, 3, 2))
        narrow = [(1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2)]
        for expansion, outputs, count, stride in narrow + [(6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)]:
            for i in range(count):
                hidden = x.shape[-1] * expansion
                y = relu6(conv_norm(take, x, hidden, 1)) if expansion > 1 else x
                y = relu6(conv_norm(take, y, hidden, 3, stride if i == 0 else 1, groups=hidden))
                y = conv_norm(take, y, outputs, 1)
                x = x + y if x.shape == y.shape else y
        return dense(take, relu6(conv_norm(take, x, 1280, 1)).mean((1, 2)), 1000)

    def unet(take, x, times):
        def residual(x, width, attend):
            y = conv(take, silu(group_norm(take, x)), width, 3) + dense(take, silu(time), width)[:, None, None]
            y = conv(take, silu(group_norm(take, y)), width, 3)
            x = y + (x if x.shape == y.shape else conv(take, x, width, 1))
            if not attend:
                return x
            tokens = group_norm(take, x).reshape(x.shape[0], -1, width)
            return x + attention(take, tokens, 8, 3).reshape(x.shape)

        angles = times.astype(f32)[:, None] * jnp.exp(jnp.arange(64) * (-math.log(10000.0) / 64))
        time = jnp.concatenate([jnp.cos(angles), jnp.sin(angles)], axis=-1).astype(kind)
        time = dense(take, silu(dense(take, time, 512)), 512)
        x = conv(take, x.transpose(0, 2, 3, 1), 128, 3)
        skips = [x]
        for width in (128, 256, 512):
            for _ in range(2):
                x = residual(x, width, width > 128)
                skips.append(x)
            if width < 512:
                x = conv(take, x, width, 3, 2)
                skips.append(x)
        x = residual(residual(x, 512, True), 512, False)
        for width in (512, 256, 128):
            for _ in range(3):
                x = residual(jnp.concatenate([x, skips.pop()], axis=-1), width, width > 128)
            if width > 128:
                x = conv(take, x.repeat(2, axis=1).repeat(2, axis=2), width, 3)
        return conv(take, silu(group_norm(take, x)), 4, 3).transpose(0, 3, 1, 2)

    def conv_bn_relu(take, x):
        x = conv(take, x.transpose(0, 2, 3, 1), 64, 3)
        return relu(batch_norm(take, x)).transpose(0, 3, 1, 2)

    def conv_transpose_relu(take, x):
        layout = dict(dimension_numbers=("NHWC", "HWIO", "NHWC"))
        y = jax.lax.conv_transpose(x.transpose(0, 2, 3, 1), take(4, 4, 64, 64), (2, 2), [(2, 2)] * 2, **layout)
        return relu(y + take(64)).transpose(0, 3, 1, 2)

    return {
        "mlp8x1024": mlp,
        "resnet18": resnet((2, 2, 2, 2), False),
        "resnet50": resnet((3, 4, 6, 3), True),
        "mobilenet_v2": mobilenet,
        "gpt2": gpt2,
        **{name: llama(sizes) for name, sizes in LLAMAS.items()},
        "bert": bert,
        "vit_b_16": vit,
        "mixer_b_16": mixer,
        "unet": unet,
        "kernel:conv_bn_relu": conv_bn_relu,
        "kernel:conv_transpose_relu": conv_transpose_relu,
    }


def jax_model(name, args):
    """A function of weights and inputs like that model of the zoo, and weights drawn for it, or None."""
    import jax
    import jax.numpy as jnp

    floats = [x.dtype for x in args if jnp.issubdtype(x.dtype, jnp.floating)]
    kind = floats[0] if floats else jnp.dtype(jnp.bfloat16 if GPU else jnp.float32)
    network = jax_networks(kind).get(name.removesuffix("-sdpa").removesuffix("-inplace"))
    if network is None:
        return None
    asked = []

    def noted(*shape, near=0):
        asked.append((shape, near))
        return jnp.zeros(shape, kind)

    def function(weights, *args):
        rest = iter(weights)
        return network(lambda *shape, near=0: next(rest), *args)

    jax.eval_shape(lambda *args: network(noted, *args), *args)
    keys = jax.random.split(jax.random.PRNGKey(7), len(asked))
    return function, [near + jax.random.normal(key, shape, kind) * 0.02 for key, (shape, near) in zip(keys, asked)]


def jax_case(name, inputs):
    """What that model of the zoo is in JAX, and weights and inputs."""
    if isinstance(name, File):
        raise NotImplementedError("JAX has no reader of TorchScript files")
    import jax
    import jax.numpy as jnp

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
    kernel = jax_kernels().get(name.removeprefix("kernel:")) if name.startswith("kernel:") else None
    if kernel is None:
        model = jax_model(name, args)
        if model is None:
            raise NotImplementedError("it has no such model")
        kernel, weights = model
        args.insert(0, weights)
    return kernel, jax.block_until_ready(args)


def prepare_xla(kernel, args):
    import jax

    compiled = jax.jit(kernel).lower(*args).compile()
    return lambda: jax.block_until_ready(compiled(*args))


def clocked(call):
    """The host's clock around calls, several together where one is short, after a rest in which the threads of whoever
    came before go to sleep, and a few calls that are not timed. As `src/cli/bench/clock.rs`."""
    time.sleep(0.06)
    warming = time.perf_counter()
    for _ in range(3):
        call()
        if time.perf_counter() - warming > 0.02:
            break
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
        if seconds > 0.05 and len(samples) > 1:
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


# What each kind of device is not for.
ABSENT = ("onnxruntime", "openvino") if GPU else ("inductor-cudagraphs", "inductor-max-autotune")
# The library of each peer, what makes a model with its weights and inputs, and what compiles it.
PEERS = {
    "inductor": ("torch", torch_case, prepare_inductor),
    "inductor-cudagraphs": ("torch", channels_last_case, prepare_cudagraphs),
    "inductor-max-autotune": ("torch", channels_last_case, prepare_max_autotune),
    "xla": ("jax", jax_case, prepare_xla),
    "onnxruntime": ("onnxruntime", torch_case, prepare_onnxruntime),
    "openvino": ("openvino", torch_case, prepare_openvino),
}


def who():
    peers, versions = [], {}
    for peer, (module, *_) in PEERS.items():
        if peer in ABSENT:
            continue
        try:
            library = __import__(module)
            if module == "torch" and GPU:
                library.cuda.set_device(DEVICE if ":" in DEVICE else 0)
            peers.append(peer)
            versions[peer] = f"{module} {library.__version__}"
        except Exception as error:
            how = f"; {sys.executable} -m pip install {module}" if isinstance(error, ImportError) else ""
            versions[peer] = f"none: {one_line(error)}{how}"
    return {"peers": peers, "versions": versions}


def first_calls(peer, model, inputs):
    """A peer's call, made twice, and the seconds that it took to compile and to be made once."""
    _, make, compiled = PEERS[peer]
    made = make(model, inputs)
    start = time.perf_counter()
    call = compiled(*made)
    call()
    seconds = time.perf_counter() - start
    call()
    return call, seconds


def prepare(model, inputs, peers, file=False, dtype=None):
    READY.clear()
    if file:
        model = File(model)
        model.dtype = dtype
    failed, seconds = {}, {}
    for peer in peers:
        try:
            READY[peer], seconds[peer] = first_calls(peer, model, inputs)
        except Exception as error:
            failed[peer] = one_line(error)
    return {"ready": list(READY), "failed": failed, "seconds": seconds}


def turn(peer):
    call = READY[peer]
    if not peer.startswith("inductor"):
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
