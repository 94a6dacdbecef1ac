//! A run that has ended, as its report, its statistics and its page on the screen see it.

use std::ffi::OsString;
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};
use uzswap::control::Tree;

use super::sampler::Series;
use crate::options;
use crate::os::End;
use crate::settings::{Backing, RunSettings, compression};

/// A run that has ended.
pub struct Outcome<'a> {
    pub settings: &'a RunSettings,
    pub command: &'a [OsString],
    /// The shared counters; none if the program ran unmanaged.
    pub tree: Option<&'a Tree>,
    pub end: End,
    pub started_at: SystemTime,
    pub wall_time: Duration,
    pub pid: i32,
    /// Samples, if a report is wanted.
    pub series: Option<&'a Series>,
}

/// Warnings of the run, for the report to say again.
pub struct Told {
    pub summary: String,
    pub warnings: Vec<String>,
    pub peak_used_bytes: u64,
    pub peak_needed_bytes: u64,
    pub ratio: f64,
}

/// The options as they were resolved.
pub fn settings_json(settings: &RunSettings) -> Value {
    let path =
        |p: &Option<std::path::PathBuf>| p.as_ref().map(|p| p.to_string_lossy().into_owned());
    let [(_, compressor), (_, recompressor), (_, pool), ..] =
        compression::said(&settings.compression);
    json!({
        "memory_bytes": settings.memory_bytes,
        "memory_from": settings.memory_origin,
        "pool_percent": match settings.compression.pool_percent {
            0 => json!(options::POOL_PERCENT_DEFAULT),
            fixed => json!(fixed),
        },
        "compressor": compressor,
        "recompressor": recompressor,
        "pool": pool,
        "accept_threshold_percent": settings.compression.accept_threshold_percent,
        "huge_pages": settings.huge_pages.name(),
        "idle_after_seconds": settings.idle_after.map(|d| d.as_secs_f64()),
        "turns": settings.takes_turns,
        "store": settings.store.as_ref().map(Backing::shown),
        "mechanism": settings.mechanism.name(),
        "encrypt": settings.encrypt,
        "cache": path(&settings.cache),
    })
}
