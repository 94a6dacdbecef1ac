//! Results of single tests from a JUnit XML file, as CPython's regrtest and pytest write them.

use std::collections::BTreeMap;
use std::path::Path;

/// Test name to `passed`, `failed`, `error` or `skipped`.
pub type Results = BTreeMap<String, String>;

/// Reads a report. A test that ran more than once keeps its worst result.
pub fn read(path: &Path) -> Result<Results, String> {
    let text = std::fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))?;
    let options = roxmltree::ParsingOptions { allow_dtd: true, ..Default::default() };
    let document = roxmltree::Document::parse_with_options(&text, options)
        .map_err(|e| format!("{}: {e}", path.display()))?;
    let mut results = Results::new();
    for case in document.descendants().filter(|n| n.has_tag_name("testcase")) {
        let name = match (case.attribute("classname"), case.attribute("name")) {
            (Some(class), Some(name)) => format!("{class}.{name}"),
            (_, name) => name.unwrap_or("?").to_owned(),
        };
        let has = |tag: &str| case.children().any(|n| n.has_tag_name(tag));
        let result =
            ["error", "failure", "skipped"].into_iter().find(|tag| has(tag)).unwrap_or("passed");
        let rank = |r: &str| ["passed", "skipped", "failure", "error"].iter().position(|x| *x == r);
        let entry = results.entry(name).or_insert_with(|| result.to_owned());
        if rank(result) > rank(entry) {
            *entry = result.to_owned();
        }
    }
    Ok(results)
}

/// The tests whose results differ, one line each: `name: expected -> got`.
pub fn differences(expected: &Results, got: &Results) -> Vec<String> {
    let names: std::collections::BTreeSet<_> = expected.keys().chain(got.keys()).collect();
    let absent = || "absent".to_owned();
    names
        .into_iter()
        .map(|name| (name, expected.get(name).cloned(), got.get(name).cloned()))
        .filter(|(_, before, after)| before != after)
        .map(|(name, before, after)| {
            format!("{name}: {} -> {}", before.unwrap_or_else(absent), after.unwrap_or_else(absent))
        })
        .collect()
}
