//! Does the walker name all memory that the kernel touches?

use uzswap::sys::nr;
use uzswap_preload::calls::shapes;
use uzswap_preload::calls::walk::walk;

use crate::arena::{Place, in_child, sys};
use crate::cases::{self, Case};

const EFAULT: isize = -14;

#[derive(Clone, Copy, PartialEq, Debug)]
enum Mode {
    Open,
    Held,
    Closed,
}

/// The outcome of a run: the call's result, the value of `after`, and the number of places for the
/// boundary.
type Outcome = Result<Option<[isize; 3]>, String>;

fn run(case: &Case, mode: Mode, variant: usize) -> Outcome {
    in_child(|place: &mut Place| {
        place.variant = variant;
        let args = (case.make)(place)?;
        match mode {
            Mode::Open => {}
            Mode::Held => {
                walk(case.nr, &args, place);
                place.close_but_held();
            }
            Mode::Closed => place.close(),
        }
        let result = sys(case.nr, &args);
        if result == 0 && matches!(case.nr, nr::CLONE | nr::CLONE3) {
            sys(nr::EXIT_GROUP, &[0]);
        }
        place.open();
        let seen = if result < 0 { 0 } else { (case.after)(&args) };
        Some([if case.varies { result.min(1) } else { result }, seen, place.variants as isize])
    })
}

pub fn what_is_held_is_all_that_the_kernel_touches() {
    let _directory = cases::enter_directory();
    let mut failures = Vec::new();
    let mut calls = std::collections::BTreeSet::new();
    let (mut proven, mut runs) = (0, 0);
    for case in cases::all() {
        let name = format!("{} ({})", shapes::name(case.nr), case.what);
        let (expected, seen, variants) = match run(case, Mode::Open, 0) {
            Ok(Some([result, seen, variants])) => (result, seen, variants as usize),
            Ok(None) => {
                eprintln!("skipped: {name}: cannot be set up here");
                continue;
            }
            Err(error) => {
                failures.push(format!("{name}: open: {error}"));
                continue;
            }
        };
        assert_ne!(expected, EFAULT, "{name}: the case is wrong");
        if case.fails.map_or(expected < 0, |error| expected != -error) {
            eprintln!("skipped: {name}: here the answer is {expected}, not {:?}", case.fails);
            continue;
        }
        match run(case, Mode::Closed, 0) {
            Ok(Some([result, after, _])) if (result, after) != (expected, seen) => {}
            other => failures.push(format!(
                "{name}: with nothing held still {other:?}: the case proves nothing"
            )),
        }
        for variant in 0..variants {
            match run(case, Mode::Held, variant) {
                Ok(Some([result, after, _])) if (result, after) == (expected, seen) => {}
                other => {
                    failures.push(format!(
                        "{name}, boundary {variant}: {other:?} instead of {expected}, {seen}"
                    ));
                    break;
                }
            }
        }
        proven += 1;
        runs += variants;
        calls.insert(case.nr);
    }
    eprintln!("{} calls in {proven} cases, {runs} runs", calls.len());
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    assert!(calls.len() >= 80, "only {} calls could be tried", calls.len());
}
