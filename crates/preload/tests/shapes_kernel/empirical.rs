//! Is what the walker names enough for the kernel?

use uzswap_preload::calls::shapes;
use uzswap_preload::calls::walk::walk;

use crate::arena::{Place, in_child, sys};
use crate::cases::{self, Case};

#[derive(Clone, Copy, PartialEq, Debug)]
enum Mode {
    Open,
    Held,
    Closed,
}

/// What came of a run: the call's result, and how many places for the boundary there are.
fn run(case: &Case, mode: Mode, variant: usize) -> Result<Option<(isize, usize)>, String> {
    // Two numbers in one: results of these calls are small.
    const SHIFT: u32 = 48;
    let answer = in_child(|place: &mut Place| {
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
        let mut result = sys(case.nr, &args);
        if case.varies && result > 0 {
            result = 1;
        }
        assert!(result.unsigned_abs() < 1 << (SHIFT - 1), "a result that is too large: {result:x}");
        Some(result & ((1 << SHIFT) - 1) | (place.variants as isize) << SHIFT)
    })?;
    Ok(answer.map(|both| (both << (64 - SHIFT) >> (64 - SHIFT), (both >> SHIFT) as usize)))
}

#[test]
fn what_is_held_is_all_that_the_kernel_touches() {
    let _directory = cases::enter_directory();
    let mut failures = Vec::new();
    let mut calls = std::collections::BTreeSet::new();
    let (mut proven, mut runs) = (0, 0);
    for case in cases::all() {
        let name = format!("{} ({})", shapes::name(case.nr), case.what);
        let (expected, variants) = match run(&case, Mode::Open, 0) {
            Ok(Some(outcome)) => outcome,
            Ok(None) => {
                eprintln!("skipped: {name}: cannot be set up here");
                continue;
            }
            Err(error) => {
                failures.push(format!("{name}: open: {error}"));
                continue;
            }
        };
        if expected == -38 {
            eprintln!("skipped: {name}: not in this kernel");
            continue;
        }
        if let Some(wanted) = case.answers
            && expected != wanted
        {
            failures.push(format!("{name}: answers {expected} instead of {wanted}: the case is wrong"));
            continue;
        }
        match run(&case, Mode::Closed, 0) {
            Ok(Some((result, _))) if result != expected => {}
            other => failures.push(format!("{name}: with nothing held still {other:?}: the case proves nothing")),
        }
        for variant in 0..variants {
            match run(&case, Mode::Held, variant) {
                Ok(Some((result, _))) if result == expected => {}
                other => {
                    failures.push(format!("{name}, boundary {variant}: {other:?} instead of {expected}"));
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
