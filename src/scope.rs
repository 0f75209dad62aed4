//! Names for the parts of a model that a plan shows.

use std::cell::RefCell;
use std::marker::PhantomData;

thread_local! {
    /// The scopes that are open, from the outermost on, joined by dots.
    static OPEN: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Names what a model computes as long as the guard lives: plans say `name` of these operators, and hints may be given for it.
/// Scopes within others are joined by dots, as the names of a `VarStore`'s paths are. Only captures take notice.
///
/// ```
/// # use tch::Tensor;
/// fn block(x: &Tensor, layer: usize) -> Tensor {
///     let _scope = tilefuse::scope(&format!("layers.{layer}"));
///     x.gelu("none") + x
/// }
/// ```
#[must_use = "the scope ends where the guard is dropped"]
pub fn scope(name: &str) -> Scope {
    OPEN.with_borrow_mut(|open| {
        let outer = open.len();
        if outer > 0 && !name.is_empty() {
            open.push('.');
        }
        open.push_str(name);
        Scope { outer, _thread: PhantomData }
    })
}

/// Ends a [`scope`] where it is dropped.
#[derive(Debug)]
pub struct Scope {
    /// Length of the path outside.
    outer: usize,
    /// Scopes are a thread's own.
    _thread: PhantomData<*const ()>,
}

impl Drop for Scope {
    fn drop(&mut self) {
        OPEN.with_borrow_mut(|open| open.truncate(self.outer));
    }
}

/// The path of the scopes that are open on this thread; empty where there are none.
pub(crate) fn current() -> String {
    OPEN.with_borrow(String::clone)
}

#[cfg(test)]
mod tests {
    use super::{current, scope};

    #[test]
    fn scopes_are_joined_and_end_with_their_guards() {
        assert_eq!(current(), "");
        let outer = scope("h.3");
        {
            let _inner = scope("mlp");
            assert_eq!(current(), "h.3.mlp");
        }
        assert_eq!(current(), "h.3");
        drop(outer);
        assert_eq!(current(), "");
    }
}
