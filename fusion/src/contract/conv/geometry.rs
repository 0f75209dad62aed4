//! What a convolution is, where its images lie, and what is made of its program.

use tilefuse_block::{Elem, Program};

use crate::block_kernel::{BlockKernel, BlockKernelKind, Coordinates, Layout, Tied};
use crate::contract::call_kernels::Template;
use crate::contract::price::Work;
use crate::contract::window_axis::WindowAxis;
use crate::types::fits_i32;

/// The most pixels of an instance.
const MAX_PIXELS: u64 = 1024;

/// A convolution with zeros around the image.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::contract) struct Conv {
    /// What images, weights, bias and result are made of: a float.
    pub(in crate::contract) elem: Elem,
    /// Images.
    pub(in crate::contract) batch: u64,
    /// Channels of an image.
    pub(in crate::contract) channels: u64,
    /// Channels of the result.
    pub(in crate::contract) filters: u64,
    /// Channels and filters are divided into so many; a filter reads the channels of its group.
    pub(in crate::contract) groups: u64,
    /// The axes of an image, outermost first; 1 to 3.
    pub(in crate::contract) axes: Vec<WindowAxis>,
    /// Whether a number is added for each filter.
    pub(in crate::contract) bias: bool,
}

/// The program of a convolution.
pub(super) struct ConvProgram {
    /// Its parameters are the images, the weights, the bias if there is one, and the result.
    pub(super) program: Program,
    /// How many instances it has, along the first axis of the grid.
    pub(super) instances: u32,
    /// Image, filter and pixel of the elements that it stores.
    pub(super) coordinates: Vec<Coordinates>,
}

impl Conv {
    /// Channels that a filter reads.
    pub(super) fn depth(&self) -> u64 {
        self.channels / self.groups
    }

    /// Whether each filter reads a channel of its own.
    pub(super) fn is_depthwise(&self) -> bool {
        self.depth() == 1 && self.groups > 1
    }

    /// Whether it is transposed: along all axes or none.
    pub(in crate::contract) fn is_transposed(&self) -> bool {
        self.axes.iter().any(|axis| axis.transposed)
    }

    /// What computes it in blocks of so many pixels and filters, in words.
    pub(super) fn schedule(&self, [pixels, filters]: [u64; 2]) -> String {
        let kind = match () {
            () if self.is_transposed() => "transposed",
            () if self.is_depthwise() => "depthwise",
            () => "direct",
        };
        format!("{kind} convolution, blocks of {pixels} pixels x {filters} filters")
    }

    /// Pixels of a row of the result for a pixel of the image, each of which other taps reach.
    pub(super) fn phases(&self) -> u64 {
        self.axes.last().map_or(1, WindowAxis::phases)
    }

    /// Taps along a row that follow each other and reach different pixels.
    pub(super) fn taps_at_once(&self) -> u64 {
        self.axes.last().map_or(1, WindowAxis::period)
    }

    /// Filters of a group.
    pub(super) fn filters_of_group(&self) -> u64 {
        self.filters / self.groups
    }

    /// Taps of a kernel.
    pub(super) fn taps(&self) -> u64 {
        self.axes.iter().map(|a| a.kernel).product()
    }

    /// Pixels of an image.
    pub(super) fn image(&self) -> u64 {
        self.axes.iter().map(|a| a.image).product()
    }

    /// Pixels of an image of the result.
    pub(super) fn pixels(&self) -> u64 {
        self.axes.iter().map(|a| a.out).product()
    }

    /// Multiplications.
    pub(super) fn products(&self) -> u64 {
        let pixels = if self.is_transposed() { self.image() } else { self.pixels() };
        self.batch * self.filters * pixels * self.depth() * self.taps()
    }

    /// Elements of the images, the weights, the bias and the result.
    pub(in crate::contract) fn lengths(&self) -> [u64; 4] {
        [
            self.batch * self.channels * self.image(),
            self.filters * self.depth() * self.taps(),
            if self.bias { self.filters } else { 0 },
            self.batch * self.filters * self.pixels(),
        ]
    }

    /// What it computes and moves, over operands as they lie.
    pub(in crate::contract) fn work(&self) -> Work {
        let bytes = self.lengths().iter().sum::<u64>() as f64 * f64::from(self.elem.bytes());
        let flops = 2.0 * self.products() as f64;
        Work::new(flops, bytes)
    }

    /// What sums are made of.
    pub(super) fn sum(&self) -> Elem {
        if self.elem == Elem::F64 { Elem::F64 } else { Elem::F32 }
    }

    /// Why there is no program for it, if there is none.
    ///
    /// # Errors
    /// A sentence.
    pub(super) fn check(&self) -> Result<(), String> {
        let refuse = |why: &str| Err(why.to_owned());
        let positive =
            |a: &WindowAxis| a.image > 0 && a.kernel > 0 && a.stride > 0 && a.dilation > 0 && a.out > 0;
        match () {
            () if !matches!(self.elem, Elem::F32 | Elem::F64 | Elem::F16 | Elem::Bf16) => {
                refuse("its elements are no floats of 16, 32 or 64 bits")
            }
            () if !(1..=3).contains(&self.axes.len()) => refuse("its images have no 1 to 3 axes"),
            () if !self.axes.iter().all(positive) || self.batch == 0 || self.groups == 0 => {
                refuse("it is empty")
            }
            () if self.channels == 0 || self.filters == 0 => refuse("it is empty"),
            () if !self.channels.is_multiple_of(self.groups) || !self.filters.is_multiple_of(self.groups) => {
                refuse("its groups do not divide its channels")
            }
            // Taps are found by products of two numbers below a stride.
            () if self.is_transposed() && self.axes.iter().any(|a| a.stride > 1 << 15) => {
                refuse("its stride is too large")
            }
            () if !self.fits() => refuse("its tensors have too many elements"),
            () => Ok(()),
        }
    }

    /// Whether all offsets that are computed fit into 32 bits, those of pixels that are masked off too.
    fn fits(&self) -> bool {
        let most = self.reach().is_some_and(fits_i32);
        let filters = self.filters.checked_add(64);
        let weights = filters.and_then(|n| n.checked_mul(self.depth())?.checked_mul(self.taps()));
        let result = filters
            .and_then(|n| n.checked_mul(self.batch)?.checked_mul(self.pixels().checked_add(MAX_PIXELS)?));
        most && [weights, result].into_iter().all(|n| n.is_some_and(fits_i32))
    }

    /// A bound of the offsets in the images.
    fn reach(&self) -> Option<u64> {
        let mut pitch = 1u64;
        let mut reach = 0u64;
        for axis in self.axes.iter().rev() {
            let place = axis.out.checked_add(MAX_PIXELS)?.checked_mul(axis.stride)?;
            let place =
                place.checked_add(axis.kernel.checked_mul(axis.dilation)?)?.checked_add(axis.padding)?;
            reach = reach.checked_add(place.checked_mul(pitch)?)?;
            pitch = pitch.checked_mul(axis.image)?;
        }
        let images = self.batch.checked_mul(self.channels)?.checked_mul(pitch)?;
        images.checked_add(reach.checked_mul(2)?)
    }
}

/// Where images lie.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Image {
    /// Elements between images.
    pub(super) batch: i64,
    /// Elements between channels.
    pub(super) channel: i64,
    /// Elements between pixels along each axis.
    pub(super) axes: Vec<i64>,
    /// The first element.
    pub(super) offset: i64,
    /// Elements that the pointer reaches.
    pub(super) span: i64,
}

/// A template of a program that computes its result so.
pub(super) fn whole(
    conv: &Conv,
    made: ConvProgram,
    tied: Vec<Tied>,
    layouts: Vec<(u16, Layout)>,
    schedule: String,
) -> Template {
    let kernel = BlockKernel {
        kind: BlockKernelKind::Convolution,
        program: made.program,
        grid: [made.instances, 1, 1],
        tied,
        checks: false,
        neighbours_do_not_fit: false,
        coordinates: made.coordinates,
        layouts,
        schedule,
        note: None,
        expected_us: 0.0,
    };
    let Work { flops, bytes, .. } = conv.work();
    Template {
        kernel,
        flops,
        bytes,
        shares: [1.0; 2],
        panels: None,
        operand_kernels: Vec::new(),
        result_layout: None,
        repeated_heads: None,
        shared_launch: 1.0,
    }
}
