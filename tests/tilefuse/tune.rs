//! Choosing between configurations of a kernel.

use tch::{Device, Tensor};
use tilefuse::lang::cdiv;
use tilefuse::tune::{Candidate, Outcome, Tuner};
use tilefuse::{Error, Kernel, args, grid};

use crate::common::{F32, device, setup};

/// `y = x + x`; with a negative `shift`, not.
#[tilefuse::kernel]
fn double(x: Ptr<f32>, y: Ptr<f32>, n: i64, #[constant] BLOCK: usize, #[constant] SHIFT: i32) {
    let at = program_id(0) * BLOCK + range(0, BLOCK);
    let inside = at.lt(n);
    let v = load(x + at, inside, 0);
    store(y + at, v + v + SHIFT, inside);
}

#[test]
fn the_quickest_right_configuration_is_chosen_and_remembered() {
    setup();
    let n = 100_000i64;
    let (x, y) = (Tensor::randn([n], *F32), Tensor::full([n], 7.0, *F32));
    let tuner = Tuner::new("double of the tests", [(1024usize, 1), (64, 0), (4096, 0), (1, 0), (3, 0)]);
    let key = format!("{n} in process {}", std::process::id());
    let tuning = |tuner: &Tuner<(usize, i32)>| {
        tuner.tuning(device(), &key, |&(block, shift)| {
            if block == 1 {
                return Ok(None);
            }
            double.candidate(grid![cdiv(n, block as i64)], (&x, &y, n, block, shift)).map(Some)
        })
    };
    let first = tuning(&tuner).unwrap();
    let outcomes: Vec<&Outcome> = first.trials.iter().map(|t| &t.outcome).collect();
    // The first computes something else, consistently: the others differ from it, and so it is alone.
    assert!(
        matches!(
            outcomes[..],
            [
                Outcome::Micros(_),
                Outcome::Differs(_),
                Outcome::Differs(_),
                Outcome::Pruned,
                Outcome::Failed(_)
            ]
        ),
        "{first}"
    );
    assert!(matches!(outcomes[4], Outcome::Failed(why) if why.contains("powers of two")), "{first}");
    assert_eq!(first.best(), Some(0));
    assert!(y.equal(&Tensor::full([n], 7.0, *F32)), "what is measured writes copies");

    let right = Tuner::new("double of the tests, right", [(64usize, 0), (4096, 0)]);
    let chosen = tuning(&right).unwrap();
    let best = *right.best(device(), &key, |_| panic!("known already")).unwrap();
    assert!(chosen.trials.iter().all(|t| matches!(t.outcome, Outcome::Micros(_))) && best.1 == 0, "{chosen}");
    // Another process, or tuner, finds the trials on disk.
    let again = Tuner::new("double of the tests, right", [(64usize, 0), (4096, 0)]);
    let read =
        again.tuning(device(), &key, |_| -> Result<Option<Candidate<'_>>, Error> { panic!("measured") });
    assert_eq!(*read.unwrap(), *chosen);
}

#[test]
fn accesses_out_of_bounds_and_wrong_results_never_win() {
    setup();
    let x = Tensor::randn([64], (tch::Kind::Float, Device::Cpu));
    let text = "kernel @f(%x: ptr<f32>) { %i = range 0 128 %v = load %x, %i store %x, %i, %v }";
    let tuner = Tuner::new("out of bounds", [1]);
    let key = std::process::id().to_string();
    let error =
        tuner.best(Device::Cpu, &key, |_| Ok(Some(Candidate::new(Kernel::parse(text)?, 1, &args![&x]))));
    let said = error.unwrap_err().to_string();
    assert!(said.contains("offset 64") && said.contains("out of range for %x of 64 elements"), "{said}");
}
