//! Plots as SVG, by hand: of the fault bench bars of the median, a mark at the mean, whiskers to
//! the 99th percentile; of the others plain bars.

use std::fmt::Write;

use serde_json::Value;
use uzswap_cli::estimate::worker::PHASES;
use uzswap_cli::plot::{BAR, LEFT, RIGHT, TOP, WIDTH, escape};
pub use uzswap_cli::plot::{Group, bars};

/// Refault times of every arm, a group of bars for each way of touching. The axis is logarithmic:
/// disks are slow.
pub fn faults(title: &str, arms: &[&str], summary: &Value) -> String {
    let us = |arm: &str, phase: &str, key: &str| {
        summary[arm]["phases"][phase][key].as_f64().map(|ns| ns / 1000.0).filter(|us| *us > 0.0)
    };
    let mut largest: f64 = 10.0;
    for arm in arms {
        for phase in PHASES {
            largest = largest.max(us(arm, phase.name, "refault_p99_ns").unwrap_or(0.0));
        }
    }
    let axis = Axis { decades: largest.log10().ceil() };
    let group = BAR * arms.len() as f64 + 34.0;
    let height = TOP + group * PHASES.len() as f64 + 30.0;

    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"10\" y=\"20\" font-size=\"15\">Time of one refault, {}</text>\n\
         <text x=\"10\" y=\"38\" fill=\"#555\">\
         microseconds: bar = median, dot = mean, line to the 99th percentile; \
         log scale</text>\n",
        escape(title)
    );
    axis.draw(&mut svg, height);
    for (g, phase) in PHASES.iter().enumerate() {
        let top = TOP + group * g as f64;
        let _ = writeln!(
            svg,
            "<text x=\"10\" y=\"{:.1}\" font-weight=\"bold\">{}</text>",
            top + 14.0,
            phase.name
        );
        for (a, arm) in arms.iter().enumerate() {
            let figures = ["refault_p50_ns", "refault_mean_ns", "refault_p99_ns"]
                .map(|key| us(arm, phase.name, key));
            axis.draw_bar(&mut svg, top + 20.0 + BAR * a as f64, arm, figures);
        }
    }
    svg + "</svg>\n"
}

/// Microseconds from left to right, from one to so many powers of ten.
struct Axis {
    decades: f64,
}

impl Axis {
    fn x(&self, us: f64) -> f64 {
        LEFT + (us.max(1.0).log10() / self.decades) * (WIDTH - LEFT - RIGHT)
    }

    /// A line for each power of ten.
    fn draw(&self, svg: &mut String, height: f64) {
        for decade in 0..=self.decades as i32 {
            let at = self.x(10f64.powi(decade));
            let _ = writeln!(
                svg,
                "<line x1=\"{at:.1}\" y1=\"{TOP}\" x2=\"{at:.1}\" y2=\"{:.1}\" stroke=\"#ddd\"/>\
                 <text x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\" fill=\"#555\">{}</text>",
                height - 26.0,
                height - 10.0,
                10u64.pow(decade as u32)
            );
        }
    }

    /// The name of an arm and its bar: the median, the mean and the 99th percentile.
    fn draw_bar(&self, svg: &mut String, y: f64, arm: &str, figures: [Option<f64>; 3]) {
        let middle = y + BAR / 2.0;
        let text = y + BAR - 5.0;
        let _ = writeln!(
            svg,
            "<text x=\"{}\" y=\"{text:.1}\" text-anchor=\"end\">{}</text>",
            LEFT - 8.0,
            escape(arm)
        );
        let [Some(p50), Some(mean), Some(p99)] = figures else {
            let _ =
                writeln!(svg, "<text x=\"{LEFT}\" y=\"{text:.1}\" fill=\"#999\">no result</text>");
            return;
        };
        let colour = if arm == "uzswap" { "#1f6fb2" } else { "#b9b9b9" };
        let [to_p50, to_mean, to_p99] = [p50, mean, p99].map(|us| self.x(us));
        let _ = writeln!(
            svg,
            "<rect x=\"{LEFT}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{}\" fill=\"{colour}\"/>\
             <line x1=\"{to_p50:.1}\" y1=\"{middle:.1}\" x2=\"{to_p99:.1}\" y2=\"{middle:.1}\" \
             stroke=\"#333\"/>\
             <circle cx=\"{to_mean:.1}\" cy=\"{middle:.1}\" r=\"3\" fill=\"#333\"/>\
             <text x=\"{:.1}\" y=\"{text:.1}\">{p50:.1}</text>",
            y + 2.0,
            to_p50 - LEFT,
            BAR - 4.0,
            to_p99.max(to_mean) + 6.0
        );
    }
}
