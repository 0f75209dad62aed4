//! Loads whose lanes are strided, but which are contiguous along unrolled bits.

use inkwell::types::BasicTypeEnum;

use super::memory::Index;
use super::{At, Emitter};
use crate::Result;
use crate::host::plan::Map;

impl<'c> Emitter<'c, '_> {
    /// Reads a block of vectors along the unrolled bits and transposes it in registers, if that fits.
    pub(super) fn read_transposed(
        &mut self,
        _index: Index<'c>,
        _map: &Map,
        _ty: BasicTypeEnum<'c>,
        _floor: usize,
    ) -> Result<Option<At<'c>>> {
        Ok(None)
    }
}
