//! Options, sequences, tuples and maps.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, Hash};

use tch::Tensor;

use super::{Flattener, Unflattener, Values, mismatch};
use crate::Error;

impl<T: Values> Values for Option<T> {
    fn flatten_into(&self, parts: &mut Flattener) {
        parts.bool(self.is_some());
        if let Some(value) = self {
            value.flatten_into(parts);
        }
    }

    fn unflatten_from(parts: &mut Unflattener<'_>) -> Result<Option<T>, Error> {
        if parts.bool()? { T::unflatten_from(parts).map(Some) } else { Ok(None) }
    }
}

impl<T: Values> Values for Box<T> {
    fn flatten_into(&self, parts: &mut Flattener) {
        (**self).flatten_into(parts);
    }

    fn unflatten_from(parts: &mut Unflattener<'_>) -> Result<Box<T>, Error> {
        T::unflatten_from(parts).map(Box::new)
    }
}

fn flatten_all<T: Values>(all: &[T], parts: &mut Flattener) {
    parts.count(all.len());
    all.iter().for_each(|value| value.flatten_into(parts));
}

/// An input alone: results are vectors.
impl<T: Values> Values for [T] {
    fn flatten_into(&self, parts: &mut Flattener) {
        flatten_all(self, parts);
    }

    fn as_tensors(&self) -> Option<&[Tensor]> {
        T::all_as_tensors(self)
    }
}

impl<T: Values> Values for Vec<T> {
    fn flatten_into(&self, parts: &mut Flattener) {
        flatten_all(self, parts);
    }

    fn unflatten_from(parts: &mut Unflattener<'_>) -> Result<Vec<T>, Error> {
        let count = parts.count()?;
        (0..count).map(|_| T::unflatten_from(parts)).collect()
    }

    const IS_TENSORS: bool = T::IS_TENSOR;

    fn as_tensors(&self) -> Option<&[Tensor]> {
        T::all_as_tensors(self)
    }

    fn from_tensors(tensors: Vec<Tensor>) -> Option<Vec<T>> {
        T::all_from_tensors(tensors)
    }
}

impl<T: Values, const N: usize> Values for [T; N] {
    fn flatten_into(&self, parts: &mut Flattener) {
        flatten_all(self, parts);
    }

    fn unflatten_from(parts: &mut Unflattener<'_>) -> Result<[T; N], Error> {
        Vec::unflatten_from(parts)?.try_into().map_err(|_| mismatch("an array"))
    }

    fn as_tensors(&self) -> Option<&[Tensor]> {
        T::all_as_tensors(self)
    }
}

macro_rules! tuples {
    ($($($name:ident)*;)*) => {$(
        #[allow(non_snake_case, unused_variables)]
        impl<$($name: Values),*> Values for ($($name,)*) {
            fn flatten_into(&self, parts: &mut Flattener) {
                let ($($name,)*) = self;
                $($name.flatten_into(parts);)*
            }

            fn unflatten_from(parts: &mut Unflattener<'_>) -> Result<Self, Error> {
                Ok(($($name::unflatten_from(parts)?,)*))
            }
        }
    )*};
}

tuples! {
    ;
    A;
    A B;
    A B C;
    A B C D;
    A B C D E;
    A B C D E F;
    A B C D E F G;
    A B C D E F G H;
    A B C D E F G H I;
    A B C D E F G H I J;
    A B C D E F G H I J K;
    A B C D E F G H I J K L;
}

/// In the order of the keys, which are part of the signature.
fn flatten_entries<'a, K: Values, V: Values>(
    entries: impl ExactSizeIterator<Item = (&'a K, &'a V)>,
    parts: &mut Flattener,
) {
    parts.count(entries.len());
    for (key, value) in entries {
        key.flatten_into(parts);
        value.flatten_into(parts);
    }
}

fn unflatten_entries<K: Values, V: Values, M: FromIterator<(K, V)>>(
    parts: &mut Unflattener<'_>,
) -> Result<M, Error> {
    let count = parts.count()?;
    (0..count).map(|_| Ok((K::unflatten_from(parts)?, V::unflatten_from(parts)?))).collect()
}

impl<K: Values + Ord, V: Values> Values for BTreeMap<K, V> {
    fn flatten_into(&self, parts: &mut Flattener) {
        flatten_entries(self.iter(), parts);
    }

    fn unflatten_from(parts: &mut Unflattener<'_>) -> Result<BTreeMap<K, V>, Error> {
        unflatten_entries(parts)
    }
}

impl<K: Values + Ord + Hash, V: Values, S: BuildHasher + Default + 'static> Values for HashMap<K, V, S> {
    fn flatten_into(&self, parts: &mut Flattener) {
        let mut entries: Vec<(&K, &V)> = self.iter().collect();
        entries.sort_by_key(|entry| entry.0);
        flatten_entries(entries.into_iter(), parts);
    }

    fn unflatten_from(parts: &mut Unflattener<'_>) -> Result<HashMap<K, V, S>, Error> {
        unflatten_entries(parts)
    }
}
