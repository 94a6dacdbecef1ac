//! The programs in Python, and which Python has what they import.

use std::path::PathBuf;
use std::process::Command;

use super::super::process;
use super::super::scratch::Scratch;
use super::catalogue::{Line, installed};

/// Numbers of rows and the like are chosen so that a program needs 0.15 to 0.4 GiB.
pub fn objects(_: &Scratch) -> Result<Line, String> {
    const SCRIPT: &str = include_str!("../../../tests/programs/sort.py");
    Ok(Line::new(installed("python3", "python3")?, [&"-I", &"-c", &SCRIPT, &"1.3"]))
}

pub fn matrices(_: &Scratch) -> Result<Line, String> {
    script(&["numpy"], include_str!("scripts/matrices.py"), &["2400"])
}

pub fn duckdb(query: &str, thousands: &str) -> Result<Line, String> {
    script(&["duckdb"], include_str!("scripts/duckdb.py"), &[query, thousands])
}

pub fn pandas(columns: &str, thousands: &str) -> Result<Line, String> {
    script(&["pandas", "pyarrow"], include_str!("scripts/frames.py"), &[columns, thousands])
}

pub fn polars(_: &Scratch) -> Result<Line, String> {
    script(&["polars"], include_str!("scripts/polars.py"), &["220"])
}

pub fn arrow(_: &Scratch) -> Result<Line, String> {
    script(&["numpy", "pyarrow"], include_str!("scripts/arrow.py"), &["550"])
}

pub fn forest(_: &Scratch) -> Result<Line, String> {
    script(&["numpy", "sklearn"], include_str!("scripts/forest.py"), &["70"])
}

pub fn graph(_: &Scratch) -> Result<Line, String> {
    script(&["networkx"], include_str!("scripts/graph.py"), &["75"])
}

fn script(modules: &[&str], text: &str, arguments: &[&str]) -> Result<Line, String> {
    let python = with(modules)?;
    let line = Line::new(python, [&"-I", &"-c", &text]);
    Ok(arguments.iter().fold(line, |line, argument| line.and(argument)))
}

/// The first Python there is that has the modules.
fn with(modules: &[&str]) -> Result<PathBuf, String> {
    // The interpreter itself: what the search path leads to may be a script that starts it.
    let question = format!("import sys, {}; print(sys.executable)", modules.join(", "));
    for python in process::all_named("python3") {
        let Ok(output) = Command::new(&python).args(["-I", "-c", &question]).output() else {
            continue;
        };
        let answer = String::from_utf8_lossy(&output.stdout).trim().to_string();
        if output.status.success() && !answer.is_empty() {
            return Ok(answer.into());
        }
    }
    let list = modules.join(" and ");
    let packages = modules.join(" ").replace("sklearn", "scikit-learn");
    Err(format!(
        "no python3 on the search path has {list}: 'pip install {packages}', and where that is in \
         a virtual environment put its bin first on PATH"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_python_is_found_by_its_modules() {
        match with(&["os", "json"]) {
            Ok(python) => assert!(python.is_absolute(), "{python:?}"),
            Err(why) => assert!(process::all_named("python3").is_empty(), "{why}"),
        }
        let why = with(&["sys", "no_such_module"]).unwrap_err();
        assert!(
            why.contains("has sys and no_such_module: 'pip install sys no_such_module'"),
            "{why}"
        );
    }
}
