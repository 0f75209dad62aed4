//! Atomic operations of every function and kind.

use tilefuse_block::interp::{Arg, Buffer};
use tilefuse_block::{
    AtomicFn, Builder, Data, Elem, Literal, MemoryOrder, MemoryScope, ScalarFn, TypeError, Value,
};

use crate::run::Case;
use crate::shapes::{finish, load, out_of, store};
use crate::values::{Random, edges, moderate};

const ORDERS: [(MemoryOrder, MemoryScope); 4] = [
    (MemoryOrder::AcqRel, MemoryScope::Device),
    (MemoryOrder::Relaxed, MemoryScope::Block),
    (MemoryOrder::Acquire, MemoryScope::System),
    (MemoryOrder::Release, MemoryScope::Device),
];

pub(crate) fn cases() -> Vec<Case> {
    let mut out = Vec::new();
    let mut n = 0;
    for function in AtomicFn::ALL {
        for elem in Elem::ALL.into_iter().filter(|&e| function.accepts(e)) {
            n += 1;
            let (how, warps) = (ORDERS[n % 4], 1 << (n % 5));
            out.push(apart(function, elem, how, warps, n % 3 == 0));
            if function != AtomicFn::Exchange {
                out.push(together(function, elem, how, warps));
            }
            out.push(scalar(function, elem, how, warps));
        }
    }
    for elem in [Elem::I32, Elem::U32, Elem::F32, Elem::I64, Elem::U64, Elem::F64] {
        n += 1;
        out.push(exchanged(elem, ORDERS[n % 4], 1 << (n % 4)));
    }
    for (order, warps) in ORDERS.into_iter().zip([1, 4, 8, 2]) {
        out.push(tickets(order, warps));
    }
    out.push(lock(1));
    out.push(lock(8));
    out
}

fn int(b: &mut Builder, value: i64, shape: &[u32]) -> Value {
    b.constant(Literal::int(Elem::I32, value), shape)
}

/// Values that meet one another, with NaN of both signs.
fn meeting(elem: Elem, n: usize, seed: u64) -> Data {
    let mut random = Random::new(seed);
    let edges = edges(elem);
    let whole = matches!(elem, Elem::F16 | Elem::Bf16);
    let literals = (0..n).map(|_| match (elem.is_float(), random.next() % 2) {
        // Sums of these do not depend on subnormal numbers, which devices may flush.
        (true, 0) => Literal::float(elem, (random.next() % 64) as f64 - 32.0),
        _ if whole => Literal::float(elem, (random.next() % 16) as f64),
        _ => edges[random.next() as usize % edges.len()],
    });
    let mut bytes = Data::from_literals(elem, literals).to_bytes();
    if matches!(elem, Elem::F32 | Elem::F64) {
        let width = elem.bytes() as usize;
        for element in bytes.chunks_exact_mut(width).skip(3).step_by(11) {
            element.fill(0xff);
        }
    }
    Data::from_bytes(elem, &bytes)
}

/// Inputs that a function takes without depending on what is flushed or rounded.
fn operands(function: AtomicFn, elem: Elem, n: usize, seed: u64) -> Data {
    if elem.is_float() && function == AtomicFn::Add {
        let mut random = Random::new(seed);
        return Data::from_literals(elem, (0..n).map(|_| Literal::float(elem, (random.next() % 8) as f64)));
    }
    meeting(elem, n, seed)
}

/// Every element meets another one of memory; what was there before is stored.
fn apart(function: AtomicFn, elem: Elem, how: (MemoryOrder, MemoryScope), warps: u32, masked: bool) -> Case {
    let n = 256;
    let mut b = Builder::new("apart");
    b.set_warps(warps);
    let [x, y, z] = ["x", "y", "z"].map(|name| b.ptr_param(name, elem, 16, None));
    let range = b.range(0, n).unwrap();
    let last = int(&mut b, i64::from(n) - 1, &[n]);
    let turned = b.map(ScalarFn::Sub, &[last, range]).unwrap();
    let v = load(&mut b, x, range);
    let mask = masked.then(|| {
        let three = int(&mut b, 3, &[n]);
        let rest = b.map(ScalarFn::RemTrunc, &[range, three]).unwrap();
        let one = int(&mut b, 1, &[n]);
        b.map(ScalarFn::Ne, &[rest, one]).unwrap()
    });
    let old = b.atomic(function, (y, turned, v), mask, how).unwrap();
    store(&mut b, z, range, old);
    let data = |seed| Arg::buffer(operands(function, elem, n as usize, seed));
    let name = format!("atomic {} {elem} {how:?} warps {warps} masked {masked}", function.name());
    finish(name, b, vec![data(1), data(2), out_of(elem, n)])
}

/// Elements and instances that meet in seven places.
fn together(function: AtomicFn, elem: Elem, how: (MemoryOrder, MemoryScope), warps: u32) -> Case {
    let n = 128;
    let mut b = Builder::new("together");
    b.set_warps(warps);
    let [x, y] = ["x", "y"].map(|name| b.ptr_param(name, elem, 16, None));
    let id = b.program_id(0).unwrap();
    let start = b.splat(id, &[n]).unwrap();
    let size = int(&mut b, i64::from(n), &[n]);
    let start = b.map(ScalarFn::Mul, &[start, size]).unwrap();
    let range = b.range(0, n).unwrap();
    let at = b.map(ScalarFn::Add, &[start, range]).unwrap();
    let v = load(&mut b, x, at);
    let seven = int(&mut b, 7, &[n]);
    let place = b.map(ScalarFn::RemTrunc, &[at, seven]).unwrap();
    b.atomic(function, (y, place, v), None, how).unwrap();
    let data = |count, seed| Arg::buffer(operands(function, elem, count, seed));
    let name = format!("atomic {} {elem} together {how:?} warps {warps}", function.name());
    Case { grid: [3, 1, 1], ..finish(name, b, vec![data(3 * n as usize, 5), data(7, 6)]) }
}

/// A scalar, which all threads hold and one changes.
fn scalar(function: AtomicFn, elem: Elem, how: (MemoryOrder, MemoryScope), warps: u32) -> Case {
    let mut b = Builder::new("scalar");
    b.set_warps(warps);
    let [x, y, z] = ["x", "y", "z"].map(|name| b.ptr_param(name, elem, 16, None));
    let zero = int(&mut b, 0, &[]);
    let one = int(&mut b, 1, &[]);
    let v = load(&mut b, x, zero);
    let first = b.atomic(function, (y, zero, v), None, how).unwrap();
    let second = b.atomic(function, (y, zero, v), None, how).unwrap();
    store(&mut b, z, zero, first);
    store(&mut b, z, one, second);
    let all = b.splat(first, &[64]).unwrap();
    let range = b.range(2, 64).unwrap();
    store(&mut b, z, range, all);
    let data = |seed| Arg::buffer(operands(function, elem, 1, seed));
    let name = format!("atomic {} {elem} scalar {how:?} warps {warps}", function.name());
    finish(name, b, vec![data(8), data(9), out_of(elem, 66)])
}

/// Half of the elements have the expected value.
fn exchanged(elem: Elem, how: (MemoryOrder, MemoryScope), warps: u32) -> Case {
    let n = 128u32;
    let mut b = Builder::new("exchanged");
    b.set_warps(warps);
    let [expected, new, y, z] = ["expected", "new", "y", "z"].map(|name| b.ptr_param(name, elem, 16, None));
    let range = b.range(0, n).unwrap();
    let (e, v) = (load(&mut b, expected, range), load(&mut b, new, range));
    let old = b.atomic_cas((y, range), (e, v), how).unwrap();
    store(&mut b, z, range, old);
    let memory = moderate(elem, n as usize, 1);
    let other = moderate(elem, n as usize, 2);
    let mixed = (0..n as usize).map(|i| if i % 2 == 0 { memory.get(i) } else { other.get(i) }.unwrap());
    let mixed = Data::from_literals(elem, mixed);
    let args = vec![
        Arg::buffer(mixed),
        Arg::buffer(moderate(elem, n as usize, 3)),
        Arg::buffer(memory),
        out_of(elem, n),
    ];
    finish(format!("atomic_cas {elem} {how:?} warps {warps}"), b, args)
}

/// Instances and loops draw numbers, and mark the places of these.
fn tickets(how: (MemoryOrder, MemoryScope), warps: u32) -> Case {
    let mut b = Builder::new("tickets");
    b.set_warps(warps);
    let counter = b.ptr_param("counter", Elem::I32, 16, None);
    let marks = b.ptr_param("marks", Elem::I32, 16, None);
    let (zero, one, four) = (int(&mut b, 0, &[]), int(&mut b, 1, &[]), int(&mut b, 4, &[]));
    b.for_loop::<TypeError>((zero, four, one), &[], |b, _, _| {
        let ticket = b.atomic(AtomicFn::Add, (counter, zero, one), None, how)?;
        let tile = b.splat(ticket, &[32])?;
        let width = int(b, 32, &[32]);
        let row = b.map(ScalarFn::Mul, &[tile, width])?;
        let range = b.range(0, 32)?;
        let at = b.map(ScalarFn::Add, &[row, range])?;
        store(b, marks, at, at);
        Ok(vec![])
    })
    .unwrap();
    let args = vec![Arg::Buffer(Buffer::zeros(Elem::I32, 1)), out_of(Elem::I32, 3 * 4 * 32)];
    Case { grid: [3, 1, 1], ..finish(format!("tickets {how:?} warps {warps}"), b, args) }
}

/// Instances change a tile in memory one after the other, behind a lock.
fn lock(warps: u32) -> Case {
    let mut b = Builder::new("lock");
    b.set_warps(warps);
    let [lock, y] = ["lock", "y"].map(|name| b.ptr_param(name, Elem::I32, 16, None));
    let (zero, one) = (int(&mut b, 0, &[]), int(&mut b, 1, &[]));
    let taken = b.constant(Literal::int(Elem::Bool, 1), &[]);
    b.while_loop::<TypeError>(
        &[taken],
        |_, now| Ok(now[0]),
        |b, _| {
            let old = b.atomic_cas((lock, zero), (zero, one), (MemoryOrder::Acquire, MemoryScope::Device))?;
            Ok(vec![b.map(ScalarFn::Eq, &[old, one])?])
        },
    )
    .unwrap();
    let range = b.range(0, 128).unwrap();
    let id = b.program_id(0).unwrap();
    let step = b.map(ScalarFn::Add, &[id, one]).unwrap();
    let step = b.splat(step, &[128]).unwrap();
    b.atomic(AtomicFn::Add, (y, range, step), None, (MemoryOrder::Relaxed, MemoryScope::Device)).unwrap();
    b.atomic(AtomicFn::Exchange, (lock, zero, zero), None, (MemoryOrder::Release, MemoryScope::Device))
        .unwrap();
    let args = vec![Arg::Buffer(Buffer::zeros(Elem::I32, 1)), Arg::Buffer(Buffer::zeros(Elem::I32, 128))];
    Case { grid: [20, 1, 1], ..finish(format!("lock warps {warps}"), b, args) }
}
