//! Use of a block's shared memory: reductions across warps and changes of layout.

/// The regions of shared memory that a program needs. Reductions have one each, so that one barrier serves them
/// outside loops; changes of layout share one.
#[derive(Clone, Debug, Default)]
pub(crate) struct Shared {
    /// Bytes for reductions.
    pub(crate) reduce: u64,
    /// Bytes for changes of layout.
    pub(crate) convert: u64,
    /// Bytes for operands of loops that are loaded ahead.
    pub(crate) stages: u64,
    convert_used: bool,
    in_loop: bool,
}

impl Shared {
    /// Nothing yet but so many bytes for stages.
    pub(crate) fn with_stages(stages: u64) -> Shared {
        Shared { stages, ..Shared::default() }
    }

    /// From here on, code may run more than once.
    pub(crate) fn enter_loop(&mut self) {
        self.in_loop = true;
    }

    /// A region for a reduction: its offset, and whether a barrier must come before it is written.
    pub(crate) fn for_reduce(&mut self, bytes: u64) -> (u64, bool) {
        let offset = self.reduce.next_multiple_of(16);
        self.reduce = offset + bytes;
        (offset, self.in_loop)
    }

    /// The region for changes of layout, made large enough; whether a barrier must come before it is written.
    pub(crate) fn for_convert(&mut self, bytes: u64) -> bool {
        self.convert = self.convert.max(bytes.next_multiple_of(16));
        std::mem::replace(&mut self.convert_used, true) || self.in_loop
    }

    /// What may be passed at the launch, in bytes.
    pub(crate) fn dynamic(&self) -> u64 {
        self.stages + self.convert
    }

    /// All of it, in bytes.
    pub(crate) fn total(&self) -> u64 {
        self.reduce.next_multiple_of(16) + self.stages + self.convert
    }
}
