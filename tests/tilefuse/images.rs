//! Convolutions of images, which have few channels: on a GPU these are filled up, and the taps of a row are read as one run.

use tch::{Kind, Tensor};
use tilefuse::{Options, Products, fuse_with};

use crate::common::device;

/// Channels, filters, taps, stride and padding.
type Case = (i64, i64, [i64; 2], i64, i64);

fn conv((channels, filters, taps, stride, padding): Case, kind: Kind, special: bool) {
    let device = device();
    let draw = |shape: &[i64]| Tensor::randn(shape, (Kind::Float, device)).to_kind(kind);
    let weight = draw(&[filters, channels, taps[0], taps[1]]) * 0.2;
    let bias = draw(&[filters]);
    let model = |x: &[Tensor], w: &Tensor, b: &Tensor| {
        x[0].conv2d(w, Some(b), [stride, stride], [padding, padding], [1, 1], 1).relu()
    };
    for products in [Products::Generated, Products::Measured] {
        let (w, b) = (weight.shallow_clone(), bias.shallow_clone());
        let fused =
            fuse_with(move |x: &[Tensor]| vec![model(x, &w, &b)], Options { products, ..Options::default() });
        for _ in 0..3 {
            let x = [draw(&[3, channels, 37, 41])];
            if special {
                // Beside a window, between windows and under one.
                for (at, value) in [(0, f64::NAN), (20, f64::INFINITY), (40, f64::NEG_INFINITY)] {
                    let _ = x[0].select(3, at).select(2, 7).select(1, 0).fill_(value);
                }
            }
            let ours = fused.call(&x).unwrap().remove(0);
            let double = |t: &Tensor| t.to_kind(Kind::Double).to_device(tch::Device::Cpu);
            let exact = model(&[double(&x[0])], &double(&weight), &double(&bias));
            let eager = model(&x, &weight, &bias);
            let (rtol, atol) = if kind == Kind::Float { (1e-4, 1e-4) } else { (2e-2, 4e-2) };
            let what = format!("{channels} {filters} {taps:?} {stride} {padding} {kind:?} {products:?}");
            assert_eq!(ours.size(), eager.size(), "{what}");
            assert_eq!(ours.stride(), eager.stride(), "{what}");
            // oneDNN multiplies what is not finite by zeros that fill up its weights.
            let exact = exact.where_self(&double(&eager).isfinite(), &double(&eager));
            let ours = double(&ours).where_self(&double(&eager).isnan().logical_not(), &exact);
            assert!(ours.allclose(&exact, rtol, atol, true), "{what}");
        }
    }
}

#[test]
fn convolutions_of_few_channels() {
    let _no_grad = tch::no_grad_guard();
    for kind in [Kind::BFloat16, Kind::Half, Kind::Float] {
        for case in [
            (3, 64, [7, 7], 2, 3),
            (3, 32, [3, 3], 2, 1),
            (4, 96, [3, 3], 1, 1),
            (1, 16, [5, 5], 1, 2),
            (7, 24, [2, 8], 3, 0),
            (2, 40, [1, 3], 1, 0),
            (3, 8, [3, 3], 1, 1),
        ] {
            conv(case, kind, false);
        }
    }
}

/// A value that no window has under a tap is nowhere in the result.
#[test]
fn values_that_are_not_finite_stay_within_their_windows() {
    let _no_grad = tch::no_grad_guard();
    for case in [(3, 64, [7, 7], 2, 3), (3, 16, [2, 3], 4, 0)] {
        conv(case, Kind::BFloat16, true);
    }
}
