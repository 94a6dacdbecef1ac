//! Numbers as text, for paths in /proc and for lines that the library prints.

/// A number in decimal digits.
pub(crate) fn decimal(mut v: u32, into: &mut [u8; 12]) -> &[u8] {
    let mut i = into.len();
    loop {
        i -= 1;
        into[i] = b'0' + (v % 10) as u8;
        v /= 10;
        if v == 0 {
            return &into[i..];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::decimal;

    #[test]
    fn digits_are_those_of_the_number() {
        for v in [0, 7, 10, 4_294_967_295] {
            assert_eq!(decimal(v, &mut [0; 12]), std::format!("{v}").as_bytes());
        }
    }
}
