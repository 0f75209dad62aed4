//! Kernels written by hand in the block IR.

#![allow(dead_code, unreachable_pub)]

use tilefuse_block::{Builder, CacheHint, Elem, Literal, Program, ReduceFn, ScalarFn, TypeError, Value};

type Built = Result<Program, TypeError>;

/// Reads a tile and widens it to `f32`.
fn read(b: &mut Builder, x: Value, at: Value, mask: Option<Value>) -> Result<Value, TypeError> {
    let v = b.load(x, at, mask, None, CacheHint::Default)?;
    b.cast(v, Elem::F32)
}

/// Rounds a tile of `f32` and writes it.
fn write(
    b: &mut Builder,
    y: Value,
    at: Value,
    v: Value,
    elem: Elem,
    mask: Option<Value>,
) -> Result<(), TypeError> {
    let v = b.cast(v, elem)?;
    b.store(y, at, v, mask, CacheHint::Default)
}

/// Offsets of `block` elements an instance, and the mask of those below `n`; no mask where `block` divides `n`.
fn block_offsets(b: &mut Builder, n: i64, block: u32) -> Result<(Value, Option<Value>), TypeError> {
    let id = b.program_id(0)?;
    let size = b.constant(Literal::int(Elem::I32, i64::from(block)), &[]);
    let start = b.map(ScalarFn::Mul, &[id, size])?;
    let start = b.splat(start, &[block])?;
    let range = b.range(0, block)?;
    let at = b.map(ScalarFn::Add, &[start, range])?;
    if n % i64::from(block) == 0 {
        return Ok((at, None));
    }
    let n = b.constant(Literal::int(Elem::I32, n), &[block]);
    let mask = b.map(ScalarFn::Lt, &[at, n])?;
    Ok((at, Some(mask)))
}

/// `y = x`.
pub fn copy(elem: Elem, n: i64, block: u32, warps: u32) -> Built {
    let mut b = Builder::new("copy");
    b.set_warps(warps);
    let x = b.ptr_param("x", elem, 16, Some(n as u64));
    let y = b.ptr_param("y", elem, 16, Some(n as u64));
    let (at, mask) = block_offsets(&mut b, n, block)?;
    let v = b.load(x, at, mask, None, CacheHint::Default)?;
    b.store(y, at, v, mask, CacheHint::Default)?;
    Ok(b.finish())
}

/// `z = x + y`.
pub fn vector_add(elem: Elem, n: i64, block: u32, warps: u32) -> Built {
    let mut b = Builder::new("vector_add");
    b.set_warps(warps);
    let [x, y, z] = ["x", "y", "z"].map(|name| b.ptr_param(name, elem, 16, Some(n as u64)));
    let (at, mask) = block_offsets(&mut b, n, block)?;
    let x = read(&mut b, x, at, mask)?;
    let y = read(&mut b, y, at, mask)?;
    let sum = b.map(ScalarFn::Add, &[x, y])?;
    write(&mut b, z, at, sum, elem, mask)?;
    Ok(b.finish())
}

/// The rows of a `[rows, cols]` matrix, `tile` of them an instance.
struct Rows {
    at: Value,
    cols_at: Value,
    mask: Option<Value>,
    shape: [u32; 2],
}

fn rows(b: &mut Builder, cols: u32, tile: u32) -> Result<Rows, TypeError> {
    let width = cols.next_power_of_two();
    let shape = [tile, width];
    let int = |v: u32| Literal::int(Elem::I32, i64::from(v));
    let id = b.program_id(0)?;
    let size = b.constant(int(tile), &[]);
    let first = b.map(ScalarFn::Mul, &[id, size])?;
    let first = b.splat(first, &[tile])?;
    let range = b.range(0, tile)?;
    let row = b.map(ScalarFn::Add, &[first, range])?;
    let stride = b.constant(int(cols), &[tile]);
    let start = b.map(ScalarFn::Mul, &[row, stride])?;
    let start = b.expand_dims(start, 1)?;
    let start = b.broadcast(start, &shape)?;
    let col = b.range(0, width)?;
    let col2 = b.expand_dims(col, 0)?;
    let col2 = b.broadcast(col2, &shape)?;
    let at = b.map(ScalarFn::Add, &[start, col2])?;
    let mask = if width == cols {
        None
    } else {
        let n = b.constant(int(cols), &shape);
        Some(b.map(ScalarFn::Lt, &[col2, n])?)
    };
    Ok(Rows { at, cols_at: col, mask, shape })
}

fn along_rows(b: &mut Builder, v: Value, rows: &Rows) -> Result<Value, TypeError> {
    let v = b.expand_dims(v, 1)?;
    b.broadcast(v, &rows.shape)
}

/// `y = softmax(x)` over rows; `exp` stands for itself or, where the mathematical functions are not expanded, is
/// replaced by a polynomial of base functions.
pub fn softmax(elem: Elem, cols: u32, tile: u32, warps: u32) -> Built {
    let mut b = Builder::new("softmax");
    b.set_warps(warps);
    let x = b.ptr_param("x", elem, 16, None);
    let y = b.ptr_param("y", elem, 16, None);
    let r = rows(&mut b, cols, tile)?;
    let v = read(&mut b, x, r.at, r.mask)?;
    let max = b.reduce(ReduceFn::Max, v, 1, r.mask)?;
    let max = along_rows(&mut b, max, &r)?;
    let v = b.map(ScalarFn::Sub, &[v, max])?;
    let e = b.map(ScalarFn::Exp, &[v])?;
    let sum = b.reduce(ReduceFn::Sum, e, 1, r.mask)?;
    let sum = along_rows(&mut b, sum, &r)?;
    let out = b.map(ScalarFn::Div, &[e, sum])?;
    write(&mut b, y, r.at, out, elem, r.mask)?;
    Ok(b.finish())
}

/// `y = layer_norm(x) * weight + bias` over rows.
pub fn layer_norm(elem: Elem, cols: u32, tile: u32, warps: u32) -> Built {
    let mut b = Builder::new("layer_norm");
    b.set_warps(warps);
    let [x, weight, bias, y] = ["x", "weight", "bias", "y"].map(|name| b.ptr_param(name, elem, 16, None));
    let r = rows(&mut b, cols, tile)?;
    let v = read(&mut b, x, r.at, r.mask)?;
    let float = |v: f64| Literal::float(Elem::F32, v);
    let n = b.constant(float(f64::from(cols)), &[tile]);
    let sum = b.reduce(ReduceFn::Sum, v, 1, r.mask)?;
    let mean = b.map(ScalarFn::Div, &[sum, n])?;
    let mean = along_rows(&mut b, mean, &r)?;
    let centred = b.map(ScalarFn::Sub, &[v, mean])?;
    let squares = b.map(ScalarFn::Mul, &[centred, centred])?;
    let sum = b.reduce(ReduceFn::Sum, squares, 1, r.mask)?;
    let var = b.map(ScalarFn::Div, &[sum, n])?;
    let eps = b.constant(float(1e-5), &[tile]);
    let var = b.map(ScalarFn::Add, &[var, eps])?;
    let std = b.map(ScalarFn::Sqrt, &[var])?;
    let one = b.constant(float(1.0), &[tile]);
    let scale = b.map(ScalarFn::Div, &[one, std])?;
    let scale = along_rows(&mut b, scale, &r)?;
    let v = b.map(ScalarFn::Mul, &[centred, scale])?;
    let v = affine(&mut b, v, weight, bias, &r, cols)?;
    write(&mut b, y, r.at, v, elem, r.mask)?;
    Ok(b.finish())
}

fn per_column(b: &mut Builder, p: Value, r: &Rows, cols: u32) -> Result<Value, TypeError> {
    let mask = if r.mask.is_some() {
        let n = b.constant(Literal::int(Elem::I32, i64::from(cols)), &[r.shape[1]]);
        Some(b.map(ScalarFn::Lt, &[r.cols_at, n])?)
    } else {
        None
    };
    let v = read(b, p, r.cols_at, mask)?;
    let v = b.expand_dims(v, 0)?;
    b.broadcast(v, &r.shape)
}

fn affine(b: &mut Builder, v: Value, w: Value, c: Value, r: &Rows, cols: u32) -> Result<Value, TypeError> {
    let w = per_column(b, w, r, cols)?;
    let c = per_column(b, c, r, cols)?;
    let v = b.map(ScalarFn::Mul, &[v, w])?;
    b.map(ScalarFn::Add, &[v, c])
}

/// `y = gelu(x + bias) + residual`, the form of gelu with `tanh`.
pub fn bias_gelu_residual(elem: Elem, cols: u32, tile: u32, warps: u32) -> Built {
    let mut b = Builder::new("bias_gelu_residual");
    b.set_warps(warps);
    let [x, bias, residual, y] = ["x", "bias", "residual", "y"].map(|name| b.ptr_param(name, elem, 16, None));
    let r = rows(&mut b, cols, tile)?;
    let v = read(&mut b, x, r.at, r.mask)?;
    let rest = read(&mut b, residual, r.at, r.mask)?;
    let bias = per_column(&mut b, bias, &r, cols)?;
    let v = b.map(ScalarFn::Add, &[v, bias])?;
    let float = |b: &mut Builder, v: f64| b.constant(Literal::float(Elem::F32, v), &r.shape);
    let cube = b.map(ScalarFn::Mul, &[v, v])?;
    let cube = b.map(ScalarFn::Mul, &[cube, v])?;
    let c = float(&mut b, 0.044715);
    let inner = b.map(ScalarFn::Fma, &[cube, c, v])?;
    let c = float(&mut b, 0.797_884_560_802_865_4);
    let inner = b.map(ScalarFn::Mul, &[inner, c])?;
    let t = b.map(ScalarFn::Tanh, &[inner])?;
    let half = float(&mut b, 0.5);
    let h = b.map(ScalarFn::Mul, &[v, half])?;
    let g = b.map(ScalarFn::Fma, &[h, t, h])?;
    let out = b.map(ScalarFn::Add, &[g, rest])?;
    write(&mut b, y, r.at, out, elem, r.mask)?;
    Ok(b.finish())
}
