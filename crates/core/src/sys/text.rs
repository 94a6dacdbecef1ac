//! Text made where nothing may be allocated: paths in /proc, lines of protocols, messages.

/// The digits of the largest `u64`.
pub const DIGITS_MOST: usize = 20;

/// A number in decimal digits.
pub fn decimal(n: u64, digits: &mut [u8; DIGITS_MOST]) -> &[u8] {
    let at = put_before(digits, DIGITS_MOST, n);
    &digits[at..]
}

/// Writes a number in decimal digits that end at `end`; returns where they begin.
pub fn put_before(text: &mut [u8], end: usize, mut n: u64) -> usize {
    let mut at = end;
    loop {
        at -= 1;
        text[at] = b'0' + (n % 10) as u8;
        n /= 10;
        if n == 0 {
            return at;
        }
    }
}

/// Puts the parts one behind the other; returns how many bytes they have.
pub fn join(parts: &[&[u8]], into: &mut [u8]) -> usize {
    let mut len = 0;
    for part in parts {
        into[len..len + part.len()].copy_from_slice(part);
        len += part.len();
    }
    len
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_are_those_of_the_number() {
        for n in [0, 7, 10, 4_294_967_295, u64::MAX] {
            assert_eq!(decimal(n, &mut [0; DIGITS_MOST]), std::format!("{n}").as_bytes());
        }
    }

    #[test]
    fn parts_follow_one_another_and_the_rest_stays() {
        let mut into = *b"........";
        assert_eq!(join(&[b"/fd/", b"", b"12"], &mut into), 6);
        assert_eq!(&into, b"/fd/12..");
    }
}
