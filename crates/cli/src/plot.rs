//! Plots as SVG, by hand: plain bars.

use std::fmt::Write;

pub const BAR: f64 = 18.0;
pub const LEFT: f64 = 110.0;
pub const RIGHT: f64 = 70.0;
pub const WIDTH: f64 = 860.0;
pub const TOP: f64 = 58.0;

/// A group of bars under one heading.
pub type Group = (String, Vec<(String, f64)>);

/// Bars in groups on a linear scale.
pub fn bars(title: &str, unit: &str, groups: &[Group]) -> String {
    const LABEL: f64 = 190.0;
    let rows = groups.iter().map(|(_, bars)| bars.len() as f64 * BAR + 34.0);
    let height = TOP + rows.sum::<f64>() + 10.0;
    let values = groups.iter().flat_map(|(_, bars)| bars.iter().map(|(_, value)| *value));
    let largest = values.filter(|value| value.is_finite()).fold(f64::MIN_POSITIVE, f64::max);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" \
         fill=\"white\"/>\n\
         <text x=\"10\" y=\"20\" font-size=\"15\">{}</text>\n\
         <text x=\"10\" y=\"38\" fill=\"#555\">{}</text>\n",
        escape(title),
        escape(unit)
    );
    let mut y = TOP;
    for (heading, bars) in groups {
        let _ = writeln!(
            svg,
            "<text x=\"10\" y=\"{:.1}\" font-weight=\"bold\">{}</text>",
            y + 14.0,
            escape(heading)
        );
        y += 20.0;
        for (label, value) in bars {
            let text = y + BAR - 5.0;
            let width = (value / largest * (WIDTH - LABEL - RIGHT)).max(0.0);
            let _ = writeln!(
                svg,
                "<text x=\"{}\" y=\"{text:.1}\" text-anchor=\"end\">{}</text><rect x=\"{LABEL}\" \
                 y=\"{:.1}\" width=\"{width:.1}\" height=\"{}\" fill=\"#1f6fb2\"/><text \
                 x=\"{:.1}\" y=\"{text:.1}\">{value:.*}</text>",
                LABEL - 8.0,
                escape(label),
                y + 2.0,
                BAR - 4.0,
                LABEL + width + 6.0,
                if *value < 20.0 { 2 } else { 0 },
            );
            y += BAR;
        }
        y += 14.0;
    }
    svg + "</svg>\n"
}

pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_as_long_as_their_values() {
        let group = |name: &str, values: [f64; 2]| {
            let bars = ["a", "b<"].map(str::to_string).into_iter().zip(values).collect();
            (name.to_string(), bars)
        };
        let svg =
            bars("title", "unit", &[group("one", [50.0, 100.0]), group("two", [25.0, f64::NAN])]);
        for width in ["width=\"600.0\"", "width=\"300.0\"", "width=\"150.0\"", "width=\"0.0\""] {
            assert!(svg.contains(width), "{svg}");
        }
        assert!(svg.contains("b&lt;") && svg.ends_with("</svg>\n"));
    }
}
