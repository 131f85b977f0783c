//! Inputs that fuzzing found, replayed.

#[path = "../../../fuzz/src/checks.rs"]
mod checks;

#[test]
fn findings_of_fuzzing_stay_fixed() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/regressions");
    type Check = fn(&[u8]);
    let targets: [(&str, Check); 4] = [
        ("regex", checks::regex),
        ("schema", checks::schema),
        ("json", checks::json),
        ("mask_walk", checks::mask_walk),
    ];
    for (name, check) in targets {
        let inputs = std::fs::read_dir(format!("{folder}/{name}")).unwrap();
        let mut count = 0;
        for input in inputs {
            check(&std::fs::read(input.unwrap().path()).unwrap());
            count += 1;
        }
        assert!(count > 0, "{name} has inputs");
    }
}
