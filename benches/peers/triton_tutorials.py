"""Triton's side of the tutorials in docs/tutorials: each kernel in Triton and by libtorch, on the shapes of
`cargo bench --bench tutorials`.

usage: triton_tutorials.py [NAME_PREFIX]
Prints one JSON object a line: name, triton_us, eager_us (medians), and how far both are apart.
"""
import json, sys, time
import torch, torch.nn.functional as F
import triton, triton.language as tl
from triton.testing import do_bench

DEV = "cuda"
torch.backends.cuda.matmul.allow_tf32 = True


def bench(fn):
    return do_bench(fn, warmup=25, rep=120, return_mode="median") * 1e3


@triton.jit
def add_kernel(x, y, z, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    tl.store(z + at, tl.load(x + at, mask=inside) + tl.load(y + at, mask=inside), mask=inside)


@triton.jit
def softmax_kernel(x, y, stride, rows, cols, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    for row in tl.range(tl.program_id(0), rows, tl.num_programs(0)):
        v = tl.load(x + row * stride + at, mask=at < cols, other=-float("inf")).to(tl.float32)
        e = tl.exp(v - tl.max(v, 0))
        tl.store(y + row * stride + at, (e / tl.sum(e, 0)).to(y.dtype.element_ty), mask=at < cols)


@triton.jit
def layer_norm_kernel(x, w, b, y, mean, rstd, cols, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    inside = at < cols
    v = tl.load(x + row * cols + at, mask=inside, other=0.0).to(tl.float32)
    m = tl.sum(v, 0) / cols
    d = tl.where(inside, v - m, 0.0)
    r = 1 / tl.sqrt(tl.sum(d * d, 0) / cols + eps)
    tl.store(mean + row, m)
    tl.store(rstd + row, r)
    scale = tl.load(w + at, mask=inside).to(tl.float32)
    shift = tl.load(b + at, mask=inside).to(tl.float32)
    tl.store(y + row * cols + at, (d * r * scale + shift).to(y.dtype.element_ty), mask=inside)


@triton.jit
def layer_norm_dx_kernel(dy, x, w, mean, rstd, dx, dw, db, rows, cols, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    part = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    inside = at < cols
    scale = tl.load(w + at, mask=inside, other=0.0).to(tl.float32)
    sum_w = tl.zeros([BLOCK], tl.float32)
    sum_b = tl.zeros([BLOCK], tl.float32)
    for row in range(part, rows, ROWS):
        v = tl.load(x + row * cols + at, mask=inside, other=0.0).to(tl.float32)
        g = tl.load(dy + row * cols + at, mask=inside, other=0.0).to(tl.float32)
        m, r = tl.load(mean + row), tl.load(rstd + row)
        n = tl.where(inside, (v - m) * r, 0.0)
        gw = g * scale
        c1 = tl.sum(n * gw, 0) / cols
        c2 = tl.sum(gw, 0) / cols
        tl.store(dx + row * cols + at, ((gw - n * c1 - c2) * r).to(dx.dtype.element_ty), mask=inside)
        sum_w += g * n
        sum_b += g
    tl.store(dw + part * cols + at, sum_w, mask=inside)
    tl.store(db + part * cols + at, sum_b, mask=inside)


MM = [triton.Config({"BM": m, "BN": n, "BK": k, "GROUP": 8}, num_stages=s, num_warps=w)
      for m, n, k, s, w in [(128, 256, 64, 3, 8), (128, 128, 64, 4, 4), (128, 128, 32, 4, 4), (64, 256, 32, 4, 4)]]


@triton.autotune(configs=MM, key=["m", "n", "k"])
@triton.jit
def matmul_kernel(a, b, c, m, n, k, sa, sb, sc, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
                  GROUP: tl.constexpr):
    pid = tl.program_id(0)
    along = GROUP * tl.cdiv(n, BN)
    first = pid // along * GROUP
    tall = min(tl.cdiv(m, BM) - first, GROUP)
    i = first + (pid % along) % tall
    j = (pid % along) // tall
    rows = (i * BM + tl.arange(0, BM)) % m
    cols = (j * BN + tl.arange(0, BN)) % n
    ks = tl.arange(0, BK)
    pa = a + rows[:, None] * sa + ks[None, :]
    pb = b + ks[:, None] * sb + cols[None, :]
    acc = tl.zeros((BM, BN), tl.float32)
    for step in range(0, tl.cdiv(k, BK)):
        x = tl.load(pa, mask=ks[None, :] < k - step * BK, other=0.0)
        y = tl.load(pb, mask=ks[:, None] < k - step * BK, other=0.0)
        acc = tl.dot(x, y, acc)
        pa += BK
        pb += BK * sb
    acc = tl.where(acc >= 0, acc, 0.01 * acc)
    rows = i * BM + tl.arange(0, BM)
    cols = j * BN + tl.arange(0, BN)
    inside = (rows[:, None] < m) & (cols[None, :] < n)
    tl.store(c + rows[:, None] * sc + cols[None, :], acc.to(c.dtype.element_ty), mask=inside)


@triton.jit
def dropout_kernel(x, y, n, p, seed, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    v = tl.load(x + at, mask=inside)
    tl.store(y + at, tl.where(tl.rand(seed, at) > p, v / (1 - p), 0.0), mask=inside)


ATTN = [triton.Config({"BM": m, "BN": n}, num_stages=s, num_warps=w)
        for m, n, s, w in [(128, 64, 3, 4), (128, 128, 3, 8), (64, 64, 3, 4), (128, 64, 4, 8)]]


@triton.autotune(configs=ATTN, key=["length", "CAUSAL"])
@triton.jit
def attention_kernel(q, k, v, o, scale, length, D: tl.constexpr, CAUSAL: tl.constexpr, BM: tl.constexpr,
                     BN: tl.constexpr):
    start = tl.program_id(0) * BM
    base = tl.program_id(1).to(tl.int64) * length * D
    rows = start + tl.arange(0, BM)
    ds = tl.arange(0, D)
    x = tl.load(q + base + rows[:, None] * D + ds[None, :])
    top = tl.full([BM], -float("inf"), tl.float32)
    total = tl.zeros([BM], tl.float32)
    acc = tl.zeros([BM, D], tl.float32)
    s2 = scale * 1.4426950408889634
    end = start + BM if CAUSAL else length
    for at in range(0, end, BN):
        cols = at + tl.arange(0, BN)
        y = tl.load(k + base + cols[None, :] * D + ds[:, None])
        s = tl.dot(x, y) * s2
        if CAUSAL:
            s = tl.where(rows[:, None] >= cols[None, :], s, -float("inf"))
        higher = tl.maximum(top, tl.max(s, 1))
        p = tl.exp2(s - higher[:, None])
        shrink = tl.exp2(top - higher)
        total = total * shrink + tl.sum(p, 1)
        z = tl.load(v + base + cols[:, None] * D + ds[None, :])
        acc = tl.dot(p.to(z.dtype), z, acc * shrink[:, None])
        top = higher
    tl.store(o + base + rows[:, None] * D + ds[None, :], (acc / total[:, None]).to(o.dtype.element_ty))


@triton.jit
def grouped_kernel(pa, pb, pc, sizes, groups, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    tile = tl.program_id(0)
    last = 0
    for g in range(groups):
        m, n, k = tl.load(sizes + 3 * g), tl.load(sizes + 3 * g + 1), tl.load(sizes + 3 * g + 2)
        tiles_n = tl.cdiv(n, BN)
        count = tl.cdiv(m, BM) * tiles_n
        while tile >= last and tile < last + count:
            a = tl.load(pa + g).to(tl.pointer_type(tl.float16))
            b = tl.load(pb + g).to(tl.pointer_type(tl.float16))
            c = tl.load(pc + g).to(tl.pointer_type(tl.float16))
            i, j = (tile - last) // tiles_n, (tile - last) % tiles_n
            rows, cols, ks = i * BM + tl.arange(0, BM), j * BN + tl.arange(0, BN), tl.arange(0, BK)
            acc = tl.zeros((BM, BN), tl.float32)
            for step in range(0, k, BK):
                x = tl.load(a + rows[:, None] * k + step + ks[None, :])
                y = tl.load(b + (step + ks[:, None]) * n + cols[None, :])
                acc = tl.dot(x, y, acc)
            tl.store(c + rows[:, None] * n + cols[None, :], acc.to(tl.float16))
            tile += tl.num_programs(0)
        last += count


def emit(name, triton_fn, eager_fn, check=None, **more):
    row = {"name": name, **more}
    if check is not None:
        ours, theirs = check
        row["difference"] = (ours.double() - theirs.double()).abs().max().item()
    row["triton_us"] = bench(triton_fn)
    row["eager_us"] = bench(eager_fn)
    print(json.dumps(row), flush=True)


def vector_add():
    for n in (1 << 27, 98432):
        x, y = (torch.randn(n, device=DEV) for _ in range(2))
        z = torch.empty_like(x)
        run = lambda: add_kernel[(triton.cdiv(n, 1024),)](x, y, z, n, BLOCK=1024)
        run()
        emit(f"vector_add {n}", run, lambda: torch.add(x, y), (z, x + y), bytes=12 * n)


def softmax():
    for rows, cols in ((4096, 4096), (4096, 1000), (16384, 1024), (1024, 16384)):
        x = torch.randn(rows, cols, device=DEV, dtype=torch.bfloat16)
        y = torch.empty_like(x)
        block = triton.next_power_of_2(cols)
        warps = 4 if block <= 2048 else 8 if block <= 8192 else 16
        grid = (min(rows, 132 * 8),)
        run = lambda: softmax_kernel[grid](x, y, cols, rows, cols, BLOCK=block, num_warps=warps, num_stages=2)
        run()
        emit(f"softmax {rows}x{cols}", run, lambda: torch.softmax(x, -1), (y, torch.softmax(x, -1)), bytes=4 * x.numel())


def layer_norm():
    rows, cols = 4096, 8192
    x = torch.randn(rows, cols, device=DEV, dtype=torch.bfloat16)
    w, b = (torch.randn(cols, device=DEV, dtype=torch.bfloat16) for _ in range(2))
    y, mean, rstd = torch.empty_like(x), torch.empty(rows, device=DEV), torch.empty(rows, device=DEV)
    run = lambda: layer_norm_kernel[(rows,)](x, w, b, y, mean, rstd, cols, 1e-5, BLOCK=8192, num_warps=8)
    run()
    emit(f"layer_norm {rows}x{cols}", run, lambda: F.layer_norm(x, (cols,), w, b), (y, F.layer_norm(x, (cols,), w, b)))
    dy, dx, parts = torch.randn_like(x), torch.empty_like(x), 264
    dw, db = (torch.empty(parts, cols, device=DEV) for _ in range(2))

    def backward():
        layer_norm_dx_kernel[(parts,)](dy, x, w, mean, rstd, dx, dw, db, rows, cols, ROWS=parts, BLOCK=8192, num_warps=16)
        return dx, dw.sum(0), db.sum(0)

    backward()
    eager = lambda: torch.ops.aten.native_layer_norm_backward(dy, x, (cols,), mean[:, None], rstd[:, None], w, b, [True] * 3)
    emit(f"layer_norm_backward {rows}x{cols}", backward, eager, (dx, eager()[0]))


def matmul():
    for size in (1024, 4096, 8192):
        a, b = (torch.randn(size, size, device=DEV, dtype=torch.float16) for _ in range(2))
        c = torch.empty_like(a)
        grid = lambda meta: (triton.cdiv(size, meta["BM"]) * triton.cdiv(size, meta["BN"]),)
        run = lambda: matmul_kernel[grid](a, b, c, size, size, size, size, size, size)
        run()
        eager = lambda: F.leaky_relu(a @ b, 0.01)
        emit(f"matmul_leaky_relu {size}", run, eager, (c, eager()), flops=2 * size**3, product_us=bench(lambda: a @ b))


def dropout():
    n = 1 << 26
    x = torch.randn(n, device=DEV)
    y = torch.empty_like(x)
    run = lambda: dropout_kernel[(triton.cdiv(n, 1024),)](x, y, n, 0.5, 123, BLOCK=1024)
    run()
    emit(f"dropout {n}", run, lambda: F.dropout(x, 0.5), bytes=8 * n, kept=(y != 0).double().mean().item())


def attention():
    for causal in (False, True):
        b, h, length, d = 4, 32, 4096, 64
        q, k, v = (torch.randn(b, h, length, d, device=DEV, dtype=torch.float16) for _ in range(3))
        o, scale = torch.empty_like(q), d**-0.5
        grid = lambda meta: (length // meta["BM"], b * h)
        run = lambda: attention_kernel[grid](q, k, v, o, scale, length, D=d, CAUSAL=causal)
        run()
        eager = lambda: F.scaled_dot_product_attention(q, k, v, is_causal=causal)
        flops = 4 * b * h * length * length * d // (2 if causal else 1)
        emit(f"attention{'_causal' if causal else ''} {b}x{h}x{length}x{d}", run, eager, (o, eager()), flops=flops)


def grouped():
    sizes = [(1024, 1024, 1024), (512, 2048, 1024), (256, 512, 2048), (2048, 256, 512)]
    left = [torch.randn(m, k, device=DEV, dtype=torch.float16) for m, n, k in sizes]
    right = [torch.randn(k, n, device=DEV, dtype=torch.float16) for m, n, k in sizes]
    out = [torch.empty(m, n, device=DEV, dtype=torch.float16) for m, n, k in sizes]
    pointers = [torch.tensor([t.data_ptr() for t in ts], device=DEV) for ts in (left, right, out)]
    table = torch.tensor([e for s in sizes for e in s], dtype=torch.int32, device=DEV)
    run = lambda: grouped_kernel[(132,)](*pointers, table, len(sizes), BM=128, BN=128, BK=32, num_warps=4, num_stages=3)
    run()
    emit("grouped_matmul", run, lambda: [a @ b for a, b in zip(left, right)], (out[0], left[0] @ right[0]),
         flops=sum(2 * m * n * k for m, n, k in sizes))


def launch():
    x, y, z = (torch.zeros(16, device=DEV) for _ in range(3))
    run = lambda: add_kernel[(1,)](x, y, z, 16, BLOCK=1024)
    for _ in range(100):
        run()
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(2000):
        run()
    each = (time.perf_counter() - start) / 2000 * 1e6
    torch.cuda.synchronize()
    print(json.dumps({"name": "launch", "triton_host_us": each}), flush=True)


if __name__ == "__main__":
    prefix = sys.argv[1] if len(sys.argv) > 1 else ""
    for test in (vector_add, softmax, layer_norm, matmul, dropout, attention, grouped, launch):
        if test.__name__.startswith(prefix):
            try:
                test()
            except Exception as error:
                print(json.dumps({"name": test.__name__, "error": str(error)[:300]}), flush=True)
