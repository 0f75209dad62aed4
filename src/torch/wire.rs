//! The byte encoding in which arguments and schemas cross from and to `shim/`: native byte order, a tag byte
//! before each value, a 32-bit length before lists and strings.

use super::{Arg, Schema, SchemaArg};

/// Reads values from the front of a byte string. Past the end everything reads as zero or empty; the bytes come
/// from our own C++, so that is not met.
pub(super) struct Reader<'a>(pub(super) &'a [u8]);

impl Reader<'_> {
    fn bytes<const N: usize>(&mut self) -> [u8; N] {
        match self.0.split_first_chunk::<N>() {
            Some((head, tail)) => {
                self.0 = tail;
                *head
            }
            None => {
                self.0 = &[];
                [0; N]
            }
        }
    }

    fn u8(&mut self) -> u8 {
        u8::from_ne_bytes(self.bytes())
    }
    fn i8(&mut self) -> i8 {
        i8::from_ne_bytes(self.bytes())
    }
    fn u32(&mut self) -> u32 {
        u32::from_ne_bytes(self.bytes())
    }
    fn i32(&mut self) -> i32 {
        i32::from_ne_bytes(self.bytes())
    }
    fn u64(&mut self) -> u64 {
        u64::from_ne_bytes(self.bytes())
    }
    fn i64(&mut self) -> i64 {
        i64::from_ne_bytes(self.bytes())
    }
    fn f64(&mut self) -> f64 {
        f64::from_ne_bytes(self.bytes())
    }

    fn str(&mut self) -> String {
        let n = (self.u32() as usize).min(self.0.len());
        let (head, tail) = self.0.split_at(n);
        self.0 = tail;
        String::from_utf8_lossy(head).into_owned()
    }

    fn list<T>(&mut self, mut item: impl FnMut(&mut Self) -> T) -> Vec<T> {
        (0..self.u32()).map(|_| item(self)).collect()
    }

    /// Reads one value; tensors are their `TensorImpl` address.
    fn arg(&mut self) -> Arg<u64> {
        match self.u8() {
            1 => Arg::Tensor(self.u64()),
            2 => Arg::Tensors(self.list(|r| Some(r.u64()).filter(|&t| t != 0))),
            3 => Arg::Bool(self.u8() != 0),
            4 => Arg::Int(self.i64()),
            5 => Arg::Float(self.f64()),
            6 => Arg::Complex(self.f64(), self.f64()),
            7 => Arg::Str(self.str()),
            8 => Arg::Ints(self.list(Self::i64)),
            9 => Arg::Floats(self.list(Self::f64)),
            10 => Arg::Bools(self.list(|r| r.u8() != 0)),
            11 => Arg::DType(self.i8()),
            12 => Arg::Layout(self.i8()),
            13 => Arg::MemoryFormat(self.i8()),
            14 => Arg::Device { kind: self.i8(), index: self.i8() },
            15 => Arg::Generator,
            16 => Arg::Other(self.str()),
            _ => Arg::None,
        }
    }

    /// Reads values to the end.
    pub(super) fn args(&mut self) -> Vec<Arg<u64>> {
        let mut out = Vec::new();
        while !self.0.is_empty() {
            out.push(self.arg());
        }
        out
    }

    /// Reads an operator's schema.
    pub(super) fn schema(&mut self) -> Schema {
        Schema {
            op: self.str(),
            overload: self.str(),
            args: self.list(|r| SchemaArg { name: r.str(), written: r.u8() != 0 }),
            alias_of: self.list(|r| usize::try_from(r.i32()).ok()),
            seeded: self.u8() != 0,
            data_dependent: self.u8() != 0,
            dynamic_shape: self.u8() != 0,
        }
    }
}

/// Appends the encoding of `arg`. A tensor is written as present or absent only.
pub(super) fn write_arg<T>(out: &mut Vec<u8>, arg: &Arg<T>) {
    match arg {
        Arg::None => out.push(0),
        Arg::Tensor(_) => put(out, 1, &1u64.to_ne_bytes()),
        Arg::Tensors(list) => {
            put_list(out, 2, list, |out, t| out.extend(u64::from(t.is_some()).to_ne_bytes()));
        }
        Arg::Bool(b) => put(out, 3, &[u8::from(*b)]),
        Arg::Int(i) => put(out, 4, &i.to_ne_bytes()),
        Arg::Float(f) => put(out, 5, &f.to_ne_bytes()),
        Arg::Complex(re, im) => {
            put(out, 6, &re.to_ne_bytes());
            out.extend(im.to_ne_bytes());
        }
        Arg::Str(s) => put_list(out, 7, s.as_bytes(), |out, b| out.push(*b)),
        Arg::Ints(list) => put_list(out, 8, list, |out, i| out.extend(i.to_ne_bytes())),
        Arg::Floats(list) => put_list(out, 9, list, |out, f| out.extend(f.to_ne_bytes())),
        Arg::Bools(list) => put_list(out, 10, list, |out, b| out.push(u8::from(*b))),
        Arg::DType(d) => put(out, 11, &d.to_ne_bytes()),
        Arg::Layout(l) => put(out, 12, &l.to_ne_bytes()),
        Arg::MemoryFormat(m) => put(out, 13, &m.to_ne_bytes()),
        Arg::Device { kind, index } => put(out, 14, &[kind.to_ne_bytes()[0], index.to_ne_bytes()[0]]),
        Arg::Generator => out.push(15),
        Arg::Other(s) => put_list(out, 16, s.as_bytes(), |out, b| out.push(*b)),
    }
}

fn put(out: &mut Vec<u8>, tag: u8, bytes: &[u8]) {
    out.push(tag);
    out.extend_from_slice(bytes);
}

fn put_list<T>(out: &mut Vec<u8>, tag: u8, items: &[T], mut item: impl FnMut(&mut Vec<u8>, &T)) {
    out.push(tag);
    out.extend((items.len() as u32).to_ne_bytes());
    for i in items {
        item(out, i);
    }
}
