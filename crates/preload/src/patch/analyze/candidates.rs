//! Where the bytes 0f 05 are, which a decoder may or may not read as a `syscall`.
//!
//! This look comes first and is the only one at every byte of the text, so it has to be fast: most
//! functions have no candidate, and are never decoded. A candidate may also be a part of a longer
//! instruction, or data.

use std::vec::Vec;

use iced_x86::{Code, Decoder, DecoderOptions, FlowControl};

use super::instruction::RT_SIGRETURN;
use crate::patch::elf::Image;

/// The addresses of the bytes 0f 05.
pub(super) fn find_candidates(vaddr: u64, text: &[u8]) -> Vec<u64> {
    let mut found = Vec::new();
    let mut at = 0;
    // Whole words without the byte 0x05 are skipped eight bytes at a time.
    const ONES: u64 = u64::MAX / 255;
    while at + 9 <= text.len() {
        let word = u64::from_le_bytes(text[at..at + 8].try_into().unwrap_or_default());
        let x = word ^ (ONES * 0x0f);
        if x.wrapping_sub(ONES) & !x & (ONES * 0x80) != 0 {
            found.extend(
                (at..at + 8)
                    .filter(|&i| text[i] == 0x0f && text[i + 1] == 0x05)
                    .map(|i| vaddr + i as u64),
            );
        }
        at += 8;
    }
    found.extend(
        (at..text.len().saturating_sub(1))
            .filter(|&i| text[i] == 0x0f && text[i + 1] == 0x05)
            .map(|i| vaddr + i as u64),
    );
    found
}

/// For counting only: whether straight code that begins by loading a number into eax leads to the
/// bytes at `at`.
pub(super) fn looks_like_a_call(image: &Image, at: u64) -> bool {
    (2..=24).any(|back| {
        let Some(b) = at.checked_sub(back).and_then(|from| image.bytes_at(from, back as usize + 2))
        else {
            return false;
        };
        let number = match b {
            [0xb8, a, b, 0, 0, ..] | [0x48, 0xc7, 0xc0, a, b, 0, 0, ..] => {
                u16::from_le_bytes([*a, *b])
            }
            [0x31, 0xc0, ..] => 0,
            _ => return false,
        };
        if number >= 1024 || number as u64 == RT_SIGRETURN {
            return false;
        }
        let code = Decoder::with_ip(64, b, at - back, DecoderOptions::NONE);
        let mut straight = code.into_iter().skip_while(|i| i.flow_control() == FlowControl::Next);
        straight.next().is_some_and(|i| i.code() == Code::Syscall && i.ip() == at)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn candidates_are_found_at_every_alignment_and_edge() {
        for at in 0..40 {
            let mut text = [0x90; 42];
            text[at..at + 2].copy_from_slice(&[0x0f, 0x05]);
            assert_eq!(find_candidates(1000, &text), [1000 + at as u64]);
        }
        assert_eq!(find_candidates(0, &[0x0f, 0x0f, 0x05, 0x0f]), [1]);
        assert_eq!(find_candidates(0, &[0x0f; 100]), []);
        assert_eq!(find_candidates(0, &[]), []);
    }
}
