//! Heat: two bits of a page's word, which remember its touches.
#![forbid(unsafe_code)]

/// How many passes of the hand a resident page survives.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Heat(u8);

impl Heat {
    /// Touched for the first time: many such pages are never touched again.
    pub const COLD: Heat = Heat(0);
    /// Brought back, or there before anybody looked.
    pub const WARM: Heat = Heat(1);
    /// Touched while in limbo: it has proved useful.
    pub const HOT: Heat = Heat(3);
    /// Bits that hold any heat.
    pub const BITS: u32 = 2;

    #[inline]
    pub const fn from_bits(bits: u64) -> Heat {
        Heat((bits & ((1 << Heat::BITS) - 1)) as u8)
    }

    #[inline]
    pub const fn bits(self) -> u64 {
        self.0 as u64
    }

    /// The hand passes. `None`: the page was cold, and is taken.
    #[inline]
    pub const fn cooled(self) -> Option<Heat> {
        match self.0 {
            0 => None,
            heat => Some(Heat(heat - 1)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_survives_as_many_passes_as_it_is_hot() {
        for (heat, passes) in [(Heat::COLD, 0), (Heat::WARM, 1), (Heat::HOT, 3)] {
            let mut now = Some(heat);
            for _ in 0..passes {
                now = now.and_then(Heat::cooled);
            }
            assert_eq!(now, Some(Heat::COLD));
            assert_eq!(now.and_then(Heat::cooled), None);
            assert_eq!(Heat::from_bits(heat.bits()), heat);
        }
    }
}
