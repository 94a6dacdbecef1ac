//! Counts of the library's locks, and what they are by fault.
//!
//! The measured process reads the counts before a measurement and after it ([`Watch`]); the
//! difference, in nanoseconds, is what it says. The bench divides by the faults ([`of_run`]).

use std::time::Instant;

use serde_json::{Map, Value, json};
use uzswap::sys::contention::{Class, Counts, Half, Slow, Tally};
use uzswap::sys::tsc;
use uzswap_cli::Failure;
use uzswap_cli::os::contention::counts;

use super::projection::Demand;

/// Processors of the projections.
pub const PROCESSORS: [u32; 3] = [4, 16, 64];
/// Readings of the clock of which the quickest pair says what one costs.
const CLOCK_READINGS: usize = 1000;

// ---------------------------------------------------------------- in the measured process

/// Counts from here on.
pub struct Watch {
    before: Counts,
    began: Instant,
    began_at: u64,
}

fn counted() -> Result<Counts, Failure> {
    counts().ok_or_else(|| {
        Failure::environment("the library in this process counts nothing of its locks".to_string())
    })
}

impl Watch {
    pub fn begin() -> Result<Watch, Failure> {
        Ok(Watch { before: counted()?, began: Instant::now(), began_at: tsc::now() })
    }

    /// The counts since the watch began, times in nanoseconds.
    pub fn end(self) -> Result<Value, Failure> {
        let (ticks, ns) = (tsc::now() - self.began_at, self.began.elapsed().as_nanos());
        let counts = counted()?.since(&self.before);
        let ns_per_tick = ns as f64 / ticks.max(1) as f64;
        let clock = (0..CLOCK_READINGS).map(|_| tsc::now().wrapping_neg().wrapping_add(tsc::now()));
        let mut said = to_json(&counts, ns_per_tick);
        said["clock_ns"] = json!(clock.min().unwrap_or(0) as f64 * ns_per_tick);
        Ok(said)
    }
}

fn to_json(counts: &Counts, ns_per_tick: f64) -> Value {
    let mut classes = Map::new();
    for class in Class::ALL {
        let [inside, outside] = Half::ALL.map(|half| counts.tally(half, class));
        let of = |tally: &Tally| {
            let ns = |ticks: u64| ticks as f64 * ns_per_tick;
            json!({
                "acquired": tally.acquired,
                "waits": tally.waits,
                "waited_ns": ns(tally.waited),
                "held_ns": ns(tally.held),
                "held_p50_ns": ns(tally.held_quantile(0.5)),
                "held_p99_ns": ns(tally.held_quantile(0.99)),
                "calls": tally.slow[Slow::Call as usize],
                "codecs": tally.slow[Slow::Codec as usize],
                "copies": tally.slow[Slow::Copy as usize],
            })
        };
        let (in_fault, outside_of) = (of(&inside), of(&outside));
        let all = of(&inside.plus(&outside));
        let halves = json!({"all": all, "in_fault": in_fault, "outside": outside_of});
        classes.insert(class.name().to_string(), halves);
    }
    json!({"faults": counts.faults(), "ns_per_tick": ns_per_tick, "classes": classes})
}

// ---------------------------------------------------------------- in the bench

/// The name of a measurement.
pub fn name(measurement: &Value) -> String {
    let kind = if measurement["write"] == true { "write" } else { "read" };
    format!("{kind} {}", measurement["threads"])
}

/// Figures by case: `read 1` and so on, and each class of them (`read 1/pager`).
pub fn of_run(worker: &Value) -> Value {
    let mut cases = Map::new();
    for measurement in worker["measurements"].as_array().into_iter().flatten() {
        let name = name(measurement);
        cases.insert(name.clone(), of_measurement(measurement));
        for class in Class::ALL {
            let figures = of_class(&measurement["contention"], class);
            if figures["acquired"].as_f64() > Some(0.0) {
                cases.insert(format!("{name}/{}", class.name()), figures);
            }
        }
    }
    cases.into()
}

/// One class, by fault.
fn of_class(contention: &Value, class: Class) -> Value {
    let faults = contention["faults"].as_f64().unwrap_or(0.0).max(1.0);
    let halves = &contention["classes"][class.name()];
    let plain = |half: &str, key: &str| halves[half][key].as_f64().unwrap_or(0.0);
    let all = |key: &str| plain("all", key);
    // A thread that loses its processor holds on meanwhile: by medians that counts for nothing.
    let by_median = |half: &str| plain(half, "acquired") * plain(half, "held_p50_ns") / faults;
    let share = |part: f64, of: f64| if of > 0.0 { part / of } else { 0.0 };
    json!({
        "acquired": all("acquired") / faults,
        "held_mean_ns": share(all("held_ns"), all("acquired")),
        "held_p50_ns": all("held_p50_ns"),
        "held_p99_ns": all("held_p99_ns"),
        "wait_share": share(all("waits"), all("acquired")),
        "waited_ns": all("waited_ns") / faults,
        "held_ns": all("held_ns") / faults,
        "held_in_fault_ns": plain("in_fault", "held_ns") / faults,
        "held_by_median_ns": by_median("in_fault") + by_median("outside"),
        "calls": all("calls") / faults,
        "codecs": all("codecs") / faults,
        "copies": all("copies") / faults,
    })
}

/// The serial part of a fault, and what it would allow.
fn of_measurement(measurement: &Value) -> Value {
    let contention = &measurement["contention"];
    let faults = contention["faults"].as_f64().unwrap_or(0.0);
    let serial: Vec<Value> = (Class::ALL.into_iter().filter(|class| class.is_serial()))
        .map(|class| of_class(contention, class))
        .collect();
    let each = |key: &str| -> Vec<f64> { serial.iter().filter_map(|f| f[key].as_f64()).collect() };
    let sum = |key: &str| each(key).iter().sum::<f64>();
    let fault_ns = measurement["cpu_ns"].as_f64().unwrap_or(0.0) / faults.max(1.0);
    let demand = Demand::of(each("held_ns"), fault_ns);
    let mut figures = json!({
        "faults": faults,
        "serial_ns": sum("held_ns"),
        "serial_in_fault_ns": sum("held_in_fault_ns"),
        "serial_by_median_ns": sum("held_by_median_ns"),
        "serial_waited_ns": sum("waited_ns"),
        "acquired": sum("acquired"),
        "calls": sum("calls"),
        "codecs": sum("codecs"),
        "copies": sum("copies"),
        "fault_cpu_ns": fault_ns,
        "clock_ns": contention["clock_ns"],
    });
    if faults > 0.0 && fault_ns > 0.0 {
        for processors in PROCESSORS {
            figures[format!("projected_amdahl_{processors}")] = json!(demand.amdahl(processors));
            figures[format!("projected_queue_{processors}")] = json!(demand.queue(processors));
        }
        figures["projected_bound"] = json!(demand.bound());
    }
    figures
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A measurement in which each class was held in a fault as often and as long as is said.
    fn made_up(of: &dyn Fn(Class) -> (u64, f64)) -> Value {
        let mut classes = Map::new();
        for class in Class::ALL {
            let (acquired, held_ns) = of(class);
            let half = json!({
                "acquired": acquired, "waits": acquired / 4, "waited_ns": held_ns * 2.0,
                "held_ns": held_ns, "held_p50_ns": 7, "held_p99_ns": 9, "calls": 1, "codecs": 0,
                "copies": acquired,
            });
            let inside = json!({"acquired": acquired, "held_ns": held_ns / 2.0, "held_p50_ns": 7});
            let halves = json!({"all": half, "in_fault": inside});
            classes.insert(class.name().to_string(), halves);
        }
        json!({
            "threads": 2, "write": true, "cpu_ns": 500_000.0,
            "contention": {"faults": 100, "clock_ns": 8.0, "classes": classes},
        })
    }

    #[test]
    fn counts_are_divided_by_the_faults() {
        let measurement = made_up(&|class| match class {
            Class::Pager => (400, 20_000.0),
            Class::Claim => (100, 300_000.0),
            _ => (0, 0.0),
        });
        let run = of_run(&json!({"measurements": [measurement]}));
        let pager = &run["write 2/pager"];
        assert_eq!((&pager["acquired"], &pager["held_mean_ns"]), (&json!(4.0), &json!(50.0)));
        assert_eq!((&pager["held_ns"], &pager["held_in_fault_ns"]), (&json!(200.0), &json!(100.0)));
        assert_eq!((&pager["wait_share"], &pager["waited_ns"]), (&json!(0.25), &json!(400.0)));
        assert_eq!(pager["held_by_median_ns"], 28.0);
        assert_eq!((&pager["calls"], &pager["copies"]), (&json!(0.01), &json!(4.0)));
        assert_eq!(run["write 2/claims"]["held_mean_ns"], 3000.0);
        assert!(run["write 2/readers"].is_null(), "what was never taken has no row");
    }

    #[test]
    fn the_serial_part_is_the_sum_of_what_other_faults_could_wait_for() {
        let measurement = made_up(&|_| (100, 1000.0));
        let whole = &of_run(&json!({"measurements": [measurement]}))["write 2"];
        let serial = Class::ALL.into_iter().filter(|class| class.is_serial()).count() as f64;
        assert!(serial >= 2.0 && serial < Class::ALL.len() as f64);
        assert_eq!(whole["serial_ns"], 10.0 * serial);
        assert_eq!(whole["serial_in_fault_ns"], 5.0 * serial);
        assert_eq!(whole["serial_by_median_ns"], 7.0 * serial);
        assert_eq!(whole["fault_cpu_ns"], 5000.0);
        let demand = Demand::of(vec![10.0; serial as usize], 5000.0);
        assert_eq!(whole["projected_queue_64"], json!(demand.queue(64)));
        assert_eq!(whole["projected_bound"], json!(500.0));
    }

    #[test]
    fn without_faults_there_is_no_projection_and_no_division_by_zero() {
        let mut measurement = made_up(&|_| (0, 0.0));
        measurement["contention"]["faults"] = json!(0);
        let run = of_run(&json!({"measurements": [measurement]}));
        assert!(run["write 2"]["projected_bound"].is_null());
        assert_eq!(run["write 2"]["serial_ns"], 0.0);
    }
}
