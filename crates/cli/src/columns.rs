//! Rows of cells under each other, for people: the lists of `ps` and `disk ls`.

/// The rows as text. `is_right`: which columns are set to the right.
pub fn aligned<const N: usize>(rows: &[[String; N]], is_right: [bool; N]) -> String {
    let widths: [usize; N] =
        std::array::from_fn(|i| rows.iter().map(|r| r[i].chars().count()).max().unwrap_or(0));
    let mut text = String::new();
    for row in rows {
        let cells =
            row.iter().zip(widths).zip(is_right).map(|((cell, width), right)| match right {
                true => format!("{cell:>width$}"),
                false => format!("{cell:<width$}"),
            });
        text += cells.collect::<Vec<_>>().join("  ").trim_end();
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_are_as_wide_as_the_widest_of_their_column() {
        let rows = [["name", "n"], ["a", "12"], ["", "3"]].map(|row| row.map(str::to_string));
        assert_eq!(aligned(&rows, [false, true]), "name   n\na     12\n       3\n");
        assert_eq!(aligned(&rows, [true, false]), "name  n\n   a  12\n      3\n");
        assert_eq!(aligned::<2>(&[], [false, true]), "");
    }
}
