//! A simulation for people: a table of loads, and the groups of a plot.

use super::{Simulation, Told, bytes_of};
use crate::plot::Group;
use crate::simulate::Sequence;
use crate::size::{grouped, human};

impl Simulation {
    pub fn text(&self, sequence: &Sequence) -> String {
        let mut text = format!(
            "needs {}; {} faults of {} in {:.1} s, {} touches, {} of them first\n",
            human(bytes_of(sequence.peak_pages)),
            grouped(sequence.faults),
            if sequence.processes == 1 {
                "1 process".to_string()
            } else {
                format!("{} processes", sequence.processes)
            },
            sequence.seconds,
            grouped(sequence.touches),
            grouped(sequence.first_touches),
        );
        let held = match sequence.recorded_pages {
            None => "an unknown part of it".to_string(),
            Some([least, most]) => {
                format!("{} to {} of it", human(bytes_of(least)), human(bytes_of(most)))
            }
        };
        text += &format!(
            "recorded with {held} in memory: {} loads, {} hits in limbo\n\n  {:<9}",
            grouped(sequence.loads),
            grouped(sequence.limbo_hits),
            ""
        );
        for column in &self.columns {
            let mark = if column.told == Told::Partly { "~" } else { "" };
            let part = column.pages as f64 / sequence.peak_pages.max(1) as f64 * 100.0;
            text += &format!(
                " {:>21}",
                format!("{mark}{} ({part:.0} %)", human(bytes_of(column.pages)))
            );
        }
        text += "\n";
        for (i, policy) in self.policies.iter().enumerate() {
            text += &format!("  {:<9}", policy.name());
            for (column, ratio) in self.columns.iter().zip(self.by_optimum(i)) {
                let cell = match (column.told, ratio) {
                    (Told::Not, _) => "not told".to_string(),
                    (_, None) => grouped(column.loads[i]),
                    (_, Some(ratio)) => format!("{} {ratio:>6.2}x", grouped(column.loads[i])),
                };
                text += &format!(" {cell:>21}");
            }
            text += "\n";
        }
        text + "\nloads (pages brought back), and by those of the optimum\n"
    }

    /// A group of bars for each size that the trace tells of.
    pub fn groups(&self, sequence: &Sequence) -> Vec<Group> {
        let told = self.columns.iter().filter(|column| column.told != Told::Not);
        let group = |column: &super::Column| {
            let part = column.pages as f64 / sequence.peak_pages.max(1) as f64 * 100.0;
            let bars = self
                .policies
                .iter()
                .zip(&column.loads)
                .map(|(p, loads)| (p.name().to_string(), *loads as f64));
            (format!("{} ({part:.0} %)", human(bytes_of(column.pages))), bars.collect())
        };
        told.map(group).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::Policy;
    use super::super::tests::looping;
    use super::*;

    #[test]
    fn the_table_has_a_column_for_each_size_and_says_what_is_not_told() {
        let sequence = looping();
        let simulation = Simulation::of(&sequence, &Policy::ALL, &[750, 500, 256]);
        let text = simulation.text(&sequence);
        assert!(text.starts_with("needs 3.9 MiB; 40 000 faults of 1 process in "), "{text}");
        assert!(
            text.contains("recorded with 1.2 MiB to 2.3 MiB of it in memory: 40 000 loads"),
            "{text}"
        );
        let head: Vec<&str> = text
            .lines()
            .nth(3)
            .unwrap()
            .split("  ")
            .filter(|s| !s.is_empty())
            .map(str::trim)
            .collect();
        assert_eq!(head, ["2.9 MiB (75 %)", "~2.0 MiB (50 %)", "1.0 MiB (26 %)"]);
        let fifo = text.lines().find(|line| line.trim_start().starts_with("fifo")).unwrap();
        assert!(fifo.contains("39 000") && fifo.ends_with("not told"), "{fifo}");
        let groups = simulation.groups(&sequence);
        assert_eq!((groups.len(), groups[0].1.len()), (2, Policy::ALL.len()));
        assert_eq!(groups[0].1[6], ("fifo".to_string(), 39_000.0));
    }
}
