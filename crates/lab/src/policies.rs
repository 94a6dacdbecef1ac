//! `uzswap bench policies`: traces of real programs, replayed under every policy.
//!
//! ```text
//!  program, `uzswap run --trace` in little memory ──> trace ──> simulate at 75, 50, 35, 25 % of its need ──> loads by policy
//! ```
//!
//! The figure for a policy is the loads by those of the pager's own policy (less than one: it would
//! bring back fewer pages), the median over programs. Traces are large, and thrown away; what stays
//! is a record of the loads. A program's order of touches is its own, so another round would show
//! how much the recording disturbs, not how much the program varies: there is one.

use std::process::Command;
use std::time::Duration;

use serde_json::{Map, Value, json};

use super::plot;
use super::process::Interrupt;
use super::programs::catalogue::{self, Chosen, Program};
use super::programs::watch::watch;
use super::record::{Out, Record, median};
use super::scratch::Scratch;
use uzswap_cli::simulate::{self, Policy, Simulation};
use uzswap_cli::size::{self, Size};
use uzswap_cli::{Failure, console};

#[derive(clap::Args, Debug)]
pub struct PoliciesArguments {
    /// Programs to record; one that is not installed is left out, and said
    #[arg(long, value_name = "LIST", default_value = "all", value_parser = catalogue::chosen)]
    programs: Chosen,
    /// Memory of the simulated policies, in percent of what the program needs
    #[arg(
        long, value_name = "N,...", default_value = "75,50,35,25", value_delimiter = ',',
        value_parser = clap::value_parser!(u32).range(5..=95)
    )]
    parts: Vec<u32>,
    /// Memory to record with: sizes below what is in memory then are not told
    #[arg(long, value_name = "SIZE", default_value = "64M", value_parser = size::parse)]
    record_with: Size,
    #[command(flatten)]
    out: Out,
}

pub fn run(arguments: PoliciesArguments) -> Result<u8, Failure> {
    let record = Record::begin(&arguments.out, "policies")?;
    let (scratch, interrupt) = (Scratch::new("policies")?, Interrupt::install());
    let mut of_programs = Map::new();
    for program in &arguments.programs.0 {
        let own = one(program, &arguments, &scratch, &interrupt)?;
        of_programs.insert(
            program.name.to_string(),
            own.unwrap_or_else(|why| {
                println!("\n{}: skipped: {why}", program.name);
                json!({"not_measured": why})
            }),
        );
    }
    let by_own = over_programs(&arguments.parts, &of_programs);
    print!("{}", conclusion(&arguments.parts, &by_own));
    let json = record.write_json(json!({
        "settings": {
            "parts_percent": arguments.parts, "record_with_bytes": arguments.record_with.of(0),
        },
        "loads_by_uzswap": by_own,
        "programs": of_programs,
    }))?;
    let title = "Pages brought back, by those of uzswap's policy, medians over programs";
    let plot = record
        .write("svg", &plot::bars(title, "less is better", &groups(&arguments.parts, &by_own)))?;
    println!("\n{}\n{}", json.display(), plot.display());
    Ok(0)
}

/// Records one program and simulates. The inner error says why it cannot be done here.
fn one(
    program: &Program,
    arguments: &PoliciesArguments,
    scratch: &Scratch,
    interrupt: &Interrupt,
) -> Result<Result<Value, String>, Failure> {
    const PATIENCE: Duration = Duration::from_secs(900);
    let line = match program.line(scratch) {
        Ok(line) => line,
        Err(why) => return Ok(Err(why)),
    };
    let trace = scratch.path().join("trace");
    let mut command = Command::new(super::arms::uzswap()?);
    command.args([
        "run",
        "--quiet",
        "--memory",
        &arguments.record_with.of(0).to_string(),
        "--trace",
    ]);
    command.arg(&trace).arg("--");
    console::say(&format!("{}: recording", program.name));
    if let Err(why) = watch(line.behind(command), &line, PATIENCE, interrupt, &mut |_| ())? {
        return Ok(Err(why));
    }
    let sequence = match simulate::read(&trace) {
        Ok(sequence) => sequence,
        Err(failure) => return Ok(Err(failure.message)),
    };
    let pages = |part: &u32| sequence.peak_pages * u64::from(*part) / 100;
    let sizes: Vec<u64> = arguments.parts.iter().map(pages).collect();
    let simulation = Simulation::of(&sequence, &Policy::ALL, &sizes);
    print!("\n{}: {}", program.name, simulation.text(&sequence));
    Ok(Ok(simulation.to_json(&sequence)))
}

/// For every part and policy the median over programs of its loads by those of uzswap's policy.
fn over_programs(parts: &[u32], programs: &Map<String, Value>) -> Value {
    let of = |part: usize, policy: Policy| {
        let ratio = |program: &Value| {
            let loads = |policy: Policy| {
                program["sizes"][part]["policies"][policy.name()]["loads"].as_f64()
            };
            loads(policy)
                .zip(loads(Policy::Uzswap))
                .filter(|(_, own)| *own > 0.0)
                .map(|(loads, own)| loads / own)
        };
        let ratios: Vec<f64> = programs.values().filter_map(ratio).collect();
        json!({"programs": ratios.len(), "median": median(ratios)})
    };
    let of_part = |(i, part): (usize, &u32)| {
        let policies = Policy::ALL.map(|policy| (policy.name().to_string(), of(i, policy)));
        (part.to_string(), Value::Object(policies.into_iter().collect()))
    };
    Value::Object(parts.iter().enumerate().map(of_part).collect())
}

/// The result of `over_programs`; none if no program could tell.
fn median_of(by_own: &Value, part: u32, policy: Policy) -> Option<f64> {
    by_own[part.to_string()][policy.name()]["median"].as_f64()
}

fn conclusion(parts: &[u32], by_own: &Value) -> String {
    let mut text =
        format!("\nloads by those of uzswap's policy, medians over programs\n  {:<9}", "");
    parts.iter().for_each(|part| text += &format!(" {:>6}", format!("{part} %")));
    for policy in Policy::ALL {
        text += &format!("\n  {:<9}", policy.name());
        for part in parts {
            text += &format!(
                " {:>6}",
                median_of(by_own, *part, policy).map_or("-".to_string(), |m| format!("{m:.2}"))
            );
        }
    }
    text + "\n"
}

fn groups(parts: &[u32], by_own: &Value) -> Vec<plot::Group> {
    let bar = |part: &u32, policy: Policy| {
        (policy.name().to_string(), median_of(by_own, *part, policy).unwrap_or(f64::NAN))
    };
    let group =
        |part: &u32| (format!("{part} % of the need"), Policy::ALL.map(|p| bar(part, p)).to_vec());
    parts.iter().map(group).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(fifo: u64, own: u64) -> Value {
        json!({"sizes": [{"policies": {"fifo": {"loads": fifo}, "uzswap": {"loads": own}}}]})
    }

    #[test]
    fn a_policy_is_judged_by_the_median_over_programs() {
        let mut programs: Map<String, Value> =
            [("a", program(300, 100)), ("b", program(50, 100)), ("c", program(110, 100))]
                .map(|(name, program)| (name.to_string(), program))
                .into_iter()
                .collect();
        programs.insert("d".to_string(), json!({"not_measured": "d is not installed"}));
        programs.insert("e".to_string(), program(0, 0));
        let by_own = over_programs(&[50], &programs);
        assert_eq!(by_own["50"]["fifo"], json!({"programs": 3, "median": 1.1}));
        assert_eq!(by_own["50"]["lru"]["median"], Value::Null);
        let text = conclusion(&[50], &by_own);
        let row = |name: &str| {
            text.lines().find(|l| l.trim_start().starts_with(name)).unwrap().to_string()
        };
        assert!(row("fifo").ends_with("1.10") && row("lru").ends_with(" -"), "{text}");
        assert_eq!(groups(&[50], &by_own)[0].1[1], ("uzswap".to_string(), 1.0));
    }
}
