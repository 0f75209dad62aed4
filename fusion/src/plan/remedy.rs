//! What would have to change for an edge that was cut to be fused.

use super::reasons::Verdict;
use crate::kernel::{BlockRefusal, Refusal};
use crate::rewrite_limit::REMEDY;

impl Verdict {
    /// What would have to change in the model, in its tensors or in the options for the edge to be fused; `None` of one that is.
    pub fn remedy(&self) -> Option<String> {
        Some(match self {
            Verdict::Fused | Verdict::Epilogue | Verdict::Prologue | Verdict::Together { .. } => return None,
            Verdict::Illegal(refusal) => return Some(refusal.remedy()),
            Verdict::Cycle(between) => {
                format!("{between} would have to be in the kernel as well: see why its own edges were cut")
            }
            Verdict::Library(operator) => format!(
                "a kernel for {operator}: an operator of one's own that launches one, registered with `Operator`, or operators that \
                 have a lowering in its place"
            ),
            Verdict::Operator(_, why) => return Some(why.remedy.clone()),
            Verdict::Slower { separate_us, merged_us } => format!(
                "nothing that the cost model knows: one kernel would take {:.1} us more; the hint `together` (`Hint::together`, `--hint together=`) makes it nevertheless",
                merged_us - separate_us
            ),
            Verdict::SlowerPrologue { separate_us, merged_us } => format!(
                "nothing that the cost model knows: each block of columns would compute the prologue again, which takes {:.1} us more; the \
                 hint `together` (`Hint::together`, `--hint together=`) makes it nevertheless",
                merged_us - separate_us
            ),
            Verdict::Memory => String::from(
                "a larger `Options::workspace_bytes` (`--workspace-bytes`), up to which a call may hold more than eager does",
            ),
            Verdict::Limit => String::from(REMEDY),
            Verdict::Hint(of) => format!("without the hint `separate` for {of} they may be fused"),
        })
    }
}

impl Refusal {
    /// What would have to change for nodes to be one kernel.
    pub fn remedy(&self) -> String {
        match self {
            Refusal::Extent { .. } => String::from(
                "operators over as many elements: what is sliced, joined or broadcast in between moved to before the first or behind \
                 the last; nothing today where windows overlap, as those of pooling do",
            ),
            Refusal::OtherReduction => String::from(
                "reductions along the same dimensions: a transposed operand, or one reduction over both",
            ),
            Refusal::OtherRow => String::from(
                "each row used where it is reduced: what moves rows (flip, roll, transpose) in front of the reduction",
            ),
            Refusal::GatherSource => String::from(
                "the computation behind the gather: what is picked, computed, in the place of picking from what is computed",
            ),
            Refusal::TooLarge { .. } => {
                String::from("a smaller operator, such as fewer tensors joined at a time")
            }
            Refusal::TooLong { .. } => String::from(
                "nothing: a load and a store cost little beside so many instructions, and compiling takes longer the more there are",
            ),
            Refusal::TooManyBuffers { .. } => {
                String::from("fewer tensors: parameters joined into one, or views of one")
            }
            Refusal::ElementType => {
                String::from("another element type: floating-point numbers, integers or truth values")
            }
            Refusal::Extern(_) => String::from("operators that have a lowering"),
            Refusal::Empty => String::from("nothing: a tensor without elements takes no time"),
            Refusal::Devices => String::from("tensors on one device"),
            Refusal::Block(refusal) => refusal.remedy().to_owned(),
        }
    }
}

impl BlockRefusal {
    /// What would have to change for an operator to be a prologue or an epilogue.
    pub fn remedy(self) -> &'static str {
        match self {
            BlockRefusal::Reduction => {
                "a reduction along the rows that the product stores, its last dimension"
            }
            BlockRefusal::UnknownStores => {
                "nothing today: products, and convolutions whose result has its channels innermost, reduce rows as an epilogue; GEMV, attention and \
                 other convolutions do not"
            }
            BlockRefusal::WideRows { .. } => {
                "nothing today: a row is reduced in the kernel that stores it where one block holds all of it"
            }
            BlockRefusal::PrologueReduction => {
                "nothing: a reduction of rows ends before a product's loads of them begin; what is computed of it for each element may be the \
                 prologue"
            }
            BlockRefusal::Both => {
                "nothing today: one product of another's result is a kernel of its own, but in attention, whose scores stay in \
                 registers"
            }
            BlockRefusal::Blocks => "products of the same sizes, over operands that lie alike",
            BlockRefusal::RunsAhead => "nothing today: on a GPU two products are two kernels",
            BlockRefusal::Tiles => "fewer operands in the neighbour, or a device with more shared memory",
            BlockRefusal::Elements { .. } => {
                "a slice behind what is computed of it, or slices of the product's operands in its place"
            }
            BlockRefusal::Windows { .. } => {
                "nothing today of windows, as those of pooling; where parts of the result are combined, as halves in a GLU, a product for \
                 each part"
            }
            BlockRefusal::Repeated { .. } => {
                "nothing today of what repeats elements, as a broadcast or upsampling; what is computed of the result alone, in front of it"
            }
            BlockRefusal::Joined { .. } => {
                "nothing today of padding and concatenations; what is computed of the result alone, in front of them"
            }
            BlockRefusal::SharedMemory => {
                "nothing today: a prologue is computed in loads to registers, and on a GPU products and attention copy operands to shared \
                 memory"
            }
            BlockRefusal::UnknownLoads => {
                "nothing today: products in blocks and attention compute a prologue in their loads; convolutions, unaligned GEMM and \
                 kernels that pack operands do not"
            }
            BlockRefusal::OtherStrides => {
                "an operand that lies contiguous: `contiguous`, or a layout that the product reads as it is"
            }
            BlockRefusal::NoLoads => "a kernel that only loads that operand",
            BlockRefusal::NoStores => "a kernel that stores its result once",
            BlockRefusal::SeveralResults => "an epilogue of one of the results",
            BlockRefusal::PrologueStored => {
                "nothing else that reads the value: computed in the product's loads, it is nowhere in memory"
            }
            BlockRefusal::Gather => {
                "nothing today of a gather itself; elements picked behind what is computed of them, and rows of an operand picked of the \
                 product's result"
            }
            BlockRefusal::ResultOrder => {
                "an epilogue that reads each element where it is stored: what transposes or rolls behind it"
            }
            BlockRefusal::Order => {
                "a neighbour in the order of the product's rows: what transposes moved away from it"
            }
            BlockRefusal::WritesOperand => "a kernel that writes results alone",
            BlockRefusal::Parameters => {
                "a kernel with one parameter for each operand and result of its operator"
            }
        }
    }
}
