//! The padding between functions, where the long jump of a detour lies.
//!
//! A short jump reaches some 130 bytes, so a pad is looked for between the functions nearby.
//! Several calls may take pieces of one gap; the pieces that are taken are known for one round of
//! plans.

use std::vec::Vec;

use iced_x86::{Decoder, DecoderOptions, Mnemonic};

use crate::patch::elf::{Functions, Image};

/// Bytes of the jump that replaces an instruction.
pub(super) const JUMP_BYTES: usize = 5;

/// The padding between functions, each piece used once.
#[derive(Default)]
pub(super) struct Pads {
    /// The end of the used part of a gap, by the function before it.
    used: Vec<(usize, u64)>,
}

impl Pads {
    /// Finds room for a long jump that a short jump ending at `from` reaches.
    pub(super) fn take(
        &mut self,
        image: &Image,
        functions: &Functions,
        near: usize,
        from: u64,
    ) -> Option<u64> {
        let lowest = near.saturating_sub(16);
        let mut order: Vec<usize> =
            (lowest..(near + 16).min(functions.len().saturating_sub(1))).collect();
        order.sort_by_key(|&n| n.abs_diff(near));
        for n in order {
            let Some(f) = functions.get(n) else { continue };
            let Some(next) = functions.get(n + 1) else { continue };
            let used = self.used.iter().position(|&(i, _)| i == n);
            let start = used.map_or(f.end, |i| self.used[i].1);
            let in_reach = |to: u64| (-128..=127).contains(&(to.wrapping_sub(from) as i64));
            if start + JUMP_BYTES as u64 > next.start
                || !in_reach(start)
                || !is_padding(image, f.end, next.start)
            {
                continue;
            }
            let end = start + JUMP_BYTES as u64;
            match used {
                Some(i) => self.used[i].1 = end,
                None => self.used.push((n, end)),
            }
            return Some(start);
        }
        None
    }
}

/// Whether there is nothing but no-ops and traps from `start` to `end`.
fn is_padding(image: &Image, start: u64, end: u64) -> bool {
    let Some(bytes) = image.bytes_at(start, (end - start) as usize) else { return false };
    bytes.len() < 64
        && Decoder::with_ip(64, bytes, start, DecoderOptions::NONE)
            .into_iter()
            .all(|i| matches!(i.mnemonic(), Mnemonic::Nop | Mnemonic::Int3))
}
