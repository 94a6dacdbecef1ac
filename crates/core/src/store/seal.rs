//! Sealing: what leaves memory is encrypted and authenticated under a key that never does.
//!
//! The program's memory holds secrets, and the disk outlives the process; so every object is sealed with
//! AES-256-GCM under a random key that is made at start, never written anywhere, and gone when the process
//! is. The same seal is the check on the way back: a page that was changed, cut, swapped with another or left
//! over from an earlier use of the same place does not open, because the nonce names the place *and* the use.
//!
//! The nonce is (cluster sequence number, offset in the cluster): 96 bits. Sequence numbers only count
//! upwards, an offset is sealed once per number, and a child after fork starts a new key: no nonce is used
//! twice under one key.
//!
//! With encryption switched off the bytes stay readable but are authenticated all the same: a copy is
//! encrypted, its tag is kept and the rest thrown away. To forge a tag is as hard as with GMAC, which
//! authenticates the bytes as they are; but there the hardware takes block by block, and is several times
//! slower. There is no way to switch the check off. (Off is for looking at what is written; it is no faster.)

use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};

use crate::sys::file::fill_random;
use crate::sys::{Errno, Result};

/// Bytes that a seal adds to an object.
pub const TAG_BYTES: usize = 16;
/// The largest object.
pub const MAX_OBJECT_BYTES: usize = 4096;

/// Whether what is written can be read by whoever reads the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Encryption {
    #[default]
    On,
    Off,
}

/// The object is not what was sealed at this place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotAuthentic;

/// One key and what to do with it.
#[derive(Clone)]
pub struct Seal {
    key: LessSafeKey,
    encryption: Encryption,
}

impl Seal {
    /// A seal under a new random key.
    pub fn new(encryption: Encryption) -> Result<Seal> {
        let mut key = [0u8; 32];
        fill_random(&mut key)?;
        let unbound = UnboundKey::new(&AES_256_GCM, &key);
        key.fill(0);
        core::hint::black_box(&key);
        // The only error is a key of the wrong length.
        Ok(Seal { key: LessSafeKey::new(unbound.map_err(|_| Errno::EINVAL)?), encryption })
    }

    /// Seals `sealed[..len - TAG_BYTES]` in place; the tag goes behind it.
    pub fn seal(&self, sequence: u64, offset: u32, sealed: &mut [u8]) {
        let (bytes, tag) = sealed.split_at_mut(sealed.len() - TAG_BYTES);
        tag.copy_from_slice(&match self.encryption {
            Encryption::On => self.encrypt(sequence, offset, bytes),
            Encryption::Off => self.encrypt_copy(sequence, offset, bytes),
        });
    }

    /// Encrypts in place; returns the tag.
    fn encrypt(&self, sequence: u64, offset: u32, bytes: &mut [u8]) -> [u8; TAG_BYTES] {
        let made = self.key.seal_in_place_separate_tag(nonce(sequence, offset), Aad::empty(), bytes);
        // The only error is a message longer than 64 GiB.
        let tag = made.expect("an object fits a cluster");
        tag.as_ref().try_into().expect("a tag of the length of tags")
    }

    /// The tag that the bytes would have.
    fn encrypt_copy(&self, sequence: u64, offset: u32, bytes: &[u8]) -> [u8; TAG_BYTES] {
        let mut copy = [0; MAX_OBJECT_BYTES];
        let copy = &mut copy[..bytes.len()];
        copy.copy_from_slice(bytes);
        self.encrypt(sequence, offset, copy)
    }

    /// Opens what [`Seal::seal`] made of the same place, in place, and returns it without its tag.
    pub fn open<'a>(
        &self,
        sequence: u64,
        offset: u32,
        sealed: &'a mut [u8],
    ) -> core::result::Result<&'a [u8], NotAuthentic> {
        let len = sealed.len().checked_sub(TAG_BYTES).ok_or(NotAuthentic)?;
        match self.encryption {
            Encryption::On => {
                let nonce = nonce(sequence, offset);
                self.key.open_in_place(nonce, Aad::empty(), sealed).map_err(|_| NotAuthentic)?;
            }
            Encryption::Off => {
                let (bytes, tag) = sealed.split_at(len);
                let made = self.encrypt_copy(sequence, offset, bytes);
                // All of it, so that the time does not tell how far they agree.
                let differing = made.iter().zip(tag).fold(0, |differing, (a, b)| differing | (a ^ b));
                if core::hint::black_box(differing) != 0 {
                    return Err(NotAuthentic);
                }
            }
        }
        Ok(&sealed[..len])
    }
}

fn nonce(sequence: u64, offset: u32) -> Nonce {
    let mut n = [0u8; 12];
    n[..8].copy_from_slice(&sequence.to_le_bytes());
    n[8..].copy_from_slice(&offset.to_le_bytes());
    Nonce::assume_unique_for_key(n)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn opens_only_the_same_bytes_at_the_same_place_in_the_same_use() {
        for encryption in [Encryption::On, Encryption::Off] {
            let seal = Seal::new(encryption).unwrap();
            let plain: Vec<u8> = (0..1000).map(|i| i as u8).collect();
            let mut sealed = plain.clone();
            sealed.resize(1000 + TAG_BYTES, 0);
            seal.seal(7, 2, &mut sealed);
            assert_eq!(sealed[..1000] == plain[..], encryption == Encryption::Off);

            assert_eq!(seal.open(7, 2, &mut sealed.clone()), Ok(&plain[..]));
            assert_eq!(seal.open(8, 2, &mut sealed.clone()), Err(NotAuthentic), "another use of the place");
            assert_eq!(seal.open(7, 3, &mut sealed.clone()), Err(NotAuthentic), "another place");
            assert_eq!(seal.open(7, 2, &mut sealed.clone()[..1015]), Err(NotAuthentic), "cut");
            assert_eq!(seal.open(7, 2, &mut []), Err(NotAuthentic), "nothing");
            let other = Seal::new(encryption).unwrap();
            assert_eq!(other.open(7, 2, &mut sealed.clone()), Err(NotAuthentic), "another key");
            for bit in [0, 4000, 8 * 1000, 8 * 1016 - 1] {
                let mut bad = sealed.clone();
                bad[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(seal.open(7, 2, &mut bad), Err(NotAuthentic), "bit {bit}");
            }
        }
    }
}
