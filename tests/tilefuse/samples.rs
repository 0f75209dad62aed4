//! Samples of libtorch's operators through `tilefuse samples`: `samples.txt` is part of what
//! `benches/samples/opinfo.py` writes.

use std::process::Command;

#[test]
fn samples_of_operators_agree_with_eager() {
    let file = crate::common::files().join("tests/tilefuse/samples.txt");
    let mut devices = vec!["cpu"];
    devices.extend((crate::common::devices().len() > 1).then_some("cuda"));
    for device in devices {
        let mut command = Command::new(crate::common::program());
        let output = command.arg("samples").arg(&file).args(["--device", device]).output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{device}: {said}");
        let all = said.lines().find(|l| l.starts_with("all")).unwrap();
        let right: usize = all.split_whitespace().nth(1).unwrap().parse().unwrap();
        assert!(right > 200, "{device}: {said}");
    }
}

/// A sample that is wrong, one that cannot be read, and one that eager rejects are counted apart.
#[test]
fn fates_of_samples_are_told_apart() {
    let folder = tempfile::tempdir().unwrap();
    let text = "sample right f32 0\ns0 = f32 4 data 0000803f0000803f0000803f00000040\n\
                %0 = input s0 [2] strides [2] offset 1\n%1 = exp.(%0)\nreturn %1\n\
                sample rejected f32 0\ns0 = f32 4 data 0000803f0000803f0000803f00000040\n\
                %0 = input s0 [2] strides [2] offset 1\n%1 = view.(%0, [3])\nreturn %1\n\
                sample unread f32 0\nthis is no program\n";
    std::fs::write(folder.path().join("f32.txt"), text).unwrap();
    let path = folder.path().to_str().unwrap();
    let output =
        Command::new(crate::common::program()).args(["samples", path, "--jobs", "1"]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let all = said.lines().find(|l| l.starts_with("all")).unwrap();
    let counts: Vec<&str> = all.split_whitespace().skip(1).collect();
    assert_eq!(counts, ["1", "0", "1", "0", "0", "0", "0", "0", "1"], "{said}");
}
