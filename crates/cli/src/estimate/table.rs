//! The words at the end: a few lines and a table for people, and the same as JSON.

use serde_json::{Value, json};

use super::cost::Costs;
use super::density::Density;
use super::model::Forecast;
use super::watch::Observation;
use super::within::Touches;
use crate::options::MIN_MEMORY_BYTES;
use crate::size::{grouped, human};

/// Everything that is known in the end.
pub struct Estimate {
    pub command: Vec<String>,
    pub seen: Observation,
    pub densities: [Density; 2],
    pub costs: Costs,
    pub forecasts: Vec<Forecast>,
}

/// The share from which on huge pages blur the figures.
const HUGE_SHARE: f64 = 0.25;
/// The share from which on unwatched memory is mentioned; a sample is never just as large as it
/// should be.
const UNSEEN_SHARE: f64 = 0.5;

impl Estimate {
    pub fn text(&self) -> String {
        [self.head(), self.rows(), self.dearness(), self.watching(), self.doubts()].concat()
    }

    /// The program, and how its pages compress.
    fn head(&self) -> String {
        let (seen, [fast, dense]) = (&self.seen, &self.densities);
        let percent = |share: f64| format!("{:.0} %", 100.0 * share);
        let [ratio, least, most] = fast.ratio(self.peak_pages());
        format!(
            "needs {}, watched for {:.1} s\n\
             its pages compress {ratio:.2}x ({least:.2} to {most:.2}; {} sampled), \
             {:.2}x by the denser codec; {} are one word repeated, {} do not compress\n\n",
            human(seen.peak_bytes),
            seen.seconds,
            grouped(fast.sampled_pages as u64),
            dense.ratio(self.peak_pages())[0],
            percent(fast.same_filled),
            percent(fast.incompressible),
        )
    }

    /// The table: a row for each limit.
    fn rows(&self) -> String {
        let row = |cells: [String; 6]| {
            let [memory, resident, compressed, stored, faults, slowdown] = cells;
            let line = format!(
                "  {memory:<16} {resident:>10} {compressed:>10} {stored:>10} {faults:>10}   \
                 {slowdown}"
            );
            line.trim_end().to_string() + "\n"
        };
        let heads = ["memory", "resident", "compressed", "on disk", "faults/s", "time"];
        let rows = self.forecasts.iter().map(|forecast| row(self.cells(forecast)));
        std::iter::once(row(heads.map(String::from))).chain(rows).collect()
    }

    /// The line about the cost of a page on this machine.
    fn dearness(&self) -> String {
        format!(
            "\na page that comes back takes {} here, {} to {} by how it is touched, \
             {} from the disk; a first touch {} more\n",
            us(self.costs.load_ns),
            us(self.costs.load_least_ns),
            us(self.costs.load_most_ns),
            us(self.costs.store_load_ns),
            us(self.costs.first_touch_ns),
        )
    }

    /// How the program was watched, and what that cost it.
    fn watching(&self) -> String {
        let seen = &self.seen;
        let of_time = |seconds: f64| 100.0 * seconds / (seen.seconds + seen.mark_seconds).max(1e-9);
        let longer = 100.0 * seen.mark_seconds / seen.seconds.max(1e-9);
        match &seen.touches {
            None => format!(
                "looked {} times, which took {:.1} % of the time ({:.1} % clearing); \
                 the program took {longer:.1} % longer for it\n",
                grouped(seen.looks.into()),
                of_time(seen.look_seconds),
                of_time(seen.clear_seconds),
            ),
            Some(touches) => format!(
                "watched one page in {} from within; \
                 the program took {longer:.1} % longer for it\n",
                touches.one_in
            ),
        }
    }

    /// Why the times may be wrong, if they may.
    fn doubts(&self) -> String {
        let seen = &self.seen;
        let mut text = String::new();
        if seen.peak_huge_bytes as f64 > HUGE_SHARE * seen.peak_bytes as f64 {
            let (what, how) = match seen.touches {
                None => ("of which any touch counts for 2 MiB", "high"),
                Some(_) => ("of which there are none while it is watched", "low"),
            };
            text += &format!(
                "{} of the memory is huge pages, {what}: the times may be too {how}\n",
                human(seen.peak_huge_bytes)
            );
        }
        let unseen = self.unseen_bytes();
        if unseen > UNSEEN_SHARE * seen.peak_bytes as f64 {
            text += &format!(
                "{} of it could not be watched (programs that cannot be taken over, or less than \
                 8 MiB each): the times are too low; --from-outside sees them\n",
                human(unseen as u64)
            );
        }
        text
    }

    /// Memory of which no use was seen, where pages are watched.
    fn unseen_bytes(&self) -> f64 {
        let seen = self.seen.touches.as_ref().map(Touches::peak_bytes);
        seen.map_or(0.0, |bytes| self.seen.peak_bytes as f64 - bytes)
    }

    fn peak_pages(&self) -> f64 {
        self.seen.peak_bytes as f64 / 4096.0
    }

    fn cells(&self, forecast: &Forecast) -> [String; 6] {
        let part = forecast.memory_bytes as f64 / self.seen.peak_bytes.max(1) as f64;
        let bytes = |bytes: f64| if bytes < 1.0 { "-".to_string() } else { human(bytes as u64) };
        let [expected, least, most] = forecast.slowdown;
        let time = match most {
            _ if forecast.memory_bytes < MIN_MEMORY_BYTES => {
                format!("too little: {} is the least", human(MIN_MEMORY_BYTES))
            }
            most if most < 1.005 => "as without".to_string(),
            _ => format!("{expected:.2}x ({least:.2} to {most:.2})"),
        };
        [
            format!("{} ({:.0} %)", human(forecast.memory_bytes), 100.0 * part),
            bytes(forecast.resident_bytes),
            bytes(forecast.compressed_bytes),
            bytes(forecast.stored_bytes),
            grouped(forecast.faults_by_second.round() as u64),
            time,
        ]
    }

    pub fn to_json(&self) -> Value {
        let (seen, [fast, dense]) = (&self.seen, &self.densities);
        let density = |density: &Density| {
            let [ratio, least, most] = density.ratio(self.peak_pages());
            json!({
                "ratio": ratio, "ratio_least": least, "ratio_most": most,
                "page_ns": density.page_ns,
            })
        };
        json!({
            "version": env!("CARGO_PKG_VERSION"),
            "command": self.command,
            "seconds": seen.seconds,
            "peak_bytes": seen.peak_bytes,
            "peak_huge_bytes": seen.peak_huge_bytes,
            "sampled_pages": fast.sampled_pages,
            "same_filled": fast.same_filled,
            "incompressible": fast.incompressible,
            "codec": density(fast),
            "dense_codec": density(dense),
            "costs": self.costs.to_json(),
            "looks": seen.looks,
            "look_seconds": seen.look_seconds,
            "clear_seconds": seen.clear_seconds,
            "mark_seconds": seen.mark_seconds,
            "watched_one_in": seen.touches.as_ref().map(|touches| touches.one_in),
            "limits": self.forecasts.iter().map(|forecast| forecast.to_json()).collect::<Vec<_>>(),
        })
    }
}

fn us(ns: f64) -> String {
    format!("{:.1} us", ns / 1000.0)
}

#[cfg(test)]
mod tests {
    use super::super::model::forecast;
    use super::super::model::tests::{COSTS, density, looping};
    use super::*;

    fn estimate() -> Estimate {
        let (seen, densities) = (looping(10_000.0), [density(0.25), density(0.2)]);
        let forecasts =
            [300, 128, 32].map(|mib| forecast(&seen, &densities, &COSTS, mib << 20)).to_vec();
        Estimate { command: vec!["it".to_string()], seen, densities, costs: COSTS, forecasts }
    }

    #[test]
    fn columns_are_under_their_heads() {
        let text = estimate().text();
        assert!(text.starts_with("needs 256 MiB, watched for "), "{text}");
        assert!(
            text.contains(
                "compress 4.00x (3.85 to 4.17; 1 000 sampled), 5.00x by the denser codec"
            ),
            "{text}"
        );
        let table: Vec<&str> = text.lines().filter(|line| line.starts_with("  ")).collect();
        let [head, fits, half, eighth] = table[..] else { panic!("{text}") };
        assert!(fits.starts_with("  300 MiB (117 %) ") && fits.ends_with("as without"), "{fits}");
        assert!(
            half.starts_with("  128 MiB (50 %) ") && half.contains("   1.1") && half.ends_with(")"),
            "{half}"
        );
        for name in ["resident", "compressed", "on disk", "faults/s"] {
            let end = head.find(name).unwrap() + name.len();
            for line in [fits, half, eighth] {
                assert!(
                    !line[..end].ends_with(' ') && line[end..].starts_with(' '),
                    "{name}: {line}"
                );
            }
        }
        assert!(!text.contains("huge"), "{text}");
        let mut huge = estimate();
        huge.seen.peak_huge_bytes = 128 << 20;
        assert!(huge.text().contains("128 MiB of the memory is huge pages, of which any touch"));
        huge.seen.touches = Some(Touches::of_peak(1000, 64));
        let text = huge.text();
        assert!(
            text.contains("watched one page in 64 from within")
                && text.contains("none while it is watched"),
            "{text}"
        );
        // 1000 times 32 pages are 125 MiB of 256.
        assert!(text.contains("131 MiB of it could not be watched"), "{text}");
    }

    #[test]
    fn json_says_the_same() {
        let estimate = estimate();
        let json = estimate.to_json();
        assert_eq!(json["limits"][1]["memory_bytes"], 128 << 20);
        assert_eq!(json["limits"][1]["slowdown"], estimate.forecasts[1].slowdown[0]);
        assert_eq!(json["codec"]["ratio"], 4.0);
        assert_eq!(json["command"], json!(["it"]));
    }
}
