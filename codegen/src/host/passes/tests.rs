use super::*;
use crate::examples;
use crate::host::Isa;

const AVX2: HostOptions = HostOptions { isa: Isa::Avx2 };

fn check(pass: Pass, file: &str) {
    examples::check(&format!("host/plan/{file}"), |program| shown(program, &AVX2, &[pass]).unwrap());
}

#[test]
fn accumulating() {
    examples::check("host/accumulate.rs", |program| shown(program, &AVX2, &[Pass::Accumulate]).unwrap());
}

#[test]
fn grouping() {
    check(Pass::Groups, "loop_groups.rs");
}

#[test]
fn materializing() {
    check(Pass::Materialize, "materialize.rs");
}

#[test]
fn guarding() {
    check(Pass::Guards, "demanded.rs");
}

#[test]
fn lanes() {
    check(Pass::Lanes, "lanes.rs");
}

#[test]
fn slots() {
    check(Pass::Slots, "slot_layout.rs");
}

#[test]
fn what_is_shown_reads_back() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../kernels");
    for entry in std::fs::read_dir(folder).unwrap() {
        let text = std::fs::read_to_string(entry.unwrap().path()).unwrap();
        let program = tilefuse_block::parse_valid(&text).unwrap();
        let rewritten = after(&program, &AVX2, Pass::Accumulate).unwrap();
        for pass in Pass::ALL {
            assert_eq!(Pass::from_name(pass.name()), Some(pass));
            assert_eq!(Pass::ALL[pass as usize], pass);
            if pass < Pass::Accumulate {
                continue;
            }
            let shown = after(&program, &AVX2, pass).unwrap();
            let again: Program = shown.parse().unwrap();
            assert_eq!(again.to_string(), rewritten);
        }
    }
}
