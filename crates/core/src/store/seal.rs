//! Sealing: every object that leaves memory is encrypted and authenticated under a key that never
//! does.
//!
//! The program's memory holds secrets, and the disk outlives the process; so every object is sealed
//! with AES-256-GCM under a random key that is made at start, never written anywhere, not into a
//! core dump either (`sys/secret.rs`), and gone when the process is. The seal is the check on the
//! way back, too: a page that was changed, cut, swapped with another or left over from an earlier
//! use of the same place does not open, because the nonce names the place *and* the use.
//!
//! ```text
//!  nonce   cluster's sequence number (48 bits) | salt (32) | offset in the cluster (16)
//! ```
//!
//! Sequence numbers only count upwards, an offset is sealed once per number, and a child after fork
//! starts a new key: no nonce is used twice under one key. But a snapshot of the whole process (a
//! virtual machine's, CRIU's) that is restored twice goes on twice with the same key and the same
//! numbers. The salt is against that: random bits, new for each cluster that is written, so that
//! two clusters of one number have the same nonces in one of 2^32 cases.
//!
//! With encryption switched off the bytes stay readable, for somebody who wants to look at what is
//! written. They are authenticated all the same: a copy is encrypted, its tag is kept, and the rest
//! is thrown away. So it is no faster. To forge a tag is as hard as with GMAC, which authenticates
//! bytes as they are, but for which the hardware takes block by block and several times as long.
//! There is no way to switch the check off.

use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};

use crate::sys::file::fill_random;
use crate::sys::secret::Secret;
use crate::sys::{Errno, Result};

/// Bytes that a seal adds to an object.
pub const TAG_BYTES: usize = 16;
/// The largest object.
pub const MAX_OBJECT_BYTES: usize = 4096;

/// Whether objects on the disk are unreadable without the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Encryption {
    #[default]
    On,
    Off,
}

/// The object is not what was sealed at this place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotAuthentic;

/// The name of one use of one place: see the nonce.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Use {
    pub sequence: u64,
    pub salt: u32,
}

impl Use {
    /// The next use, as `sequence` counts them.
    pub fn new(sequence: u64) -> Result<Use> {
        let mut salt = [0; 4];
        fill_random(&mut salt)?;
        Ok(Use { sequence, salt: u32::from_le_bytes(salt) })
    }

    fn nonce(self, offset: u16) -> Nonce {
        let mut n = [0u8; 12];
        // 2^48 clusters are more than any disk has seen.
        n[..6].copy_from_slice(&self.sequence.to_le_bytes()[..6]);
        n[6..10].copy_from_slice(&self.salt.to_le_bytes());
        n[10..].copy_from_slice(&offset.to_le_bytes());
        Nonce::assume_unique_for_key(n)
    }
}

/// One key and what to do with it.
#[derive(Clone)]
pub struct Seal {
    key: Secret<LessSafeKey>,
    encryption: Encryption,
}

impl Seal {
    /// A seal under a new random key.
    pub fn new(encryption: Encryption) -> Result<Seal> {
        let key = Secret::new(|| {
            let mut bytes = [0u8; 32];
            fill_random(&mut bytes)?;
            // The only error is a key of the wrong length.
            UnboundKey::new(&AES_256_GCM, &bytes).map(LessSafeKey::new).map_err(|_| Errno::EINVAL)
        })?;
        Ok(Seal { key, encryption })
    }

    /// Seals `sealed[..len - TAG_BYTES]` in place; the tag goes behind it.
    pub fn seal(&self, of: Use, offset: u16, sealed: &mut [u8]) {
        let (bytes, tag) = sealed.split_at_mut(sealed.len() - TAG_BYTES);
        tag.copy_from_slice(&match self.encryption {
            Encryption::On => self.encrypt(of, offset, bytes),
            Encryption::Off => self.encrypt_copy(of, offset, bytes),
        });
    }

    /// Encrypts in place; returns the tag.
    fn encrypt(&self, of: Use, offset: u16, bytes: &mut [u8]) -> [u8; TAG_BYTES] {
        let made = self.key.seal_in_place_separate_tag(of.nonce(offset), Aad::empty(), bytes);
        // The only error is a message longer than 64 GiB.
        let tag = made.expect("an object fits a cluster");
        tag.as_ref().try_into().expect("a tag of the length of tags")
    }

    /// The tag that the bytes would have.
    fn encrypt_copy(&self, of: Use, offset: u16, bytes: &[u8]) -> [u8; TAG_BYTES] {
        let mut copy = [0; MAX_OBJECT_BYTES];
        let copy = &mut copy[..bytes.len()];
        copy.copy_from_slice(bytes);
        self.encrypt(of, offset, copy)
    }

    /// Opens, in place, an object that [`Seal::seal`] sealed for the same place, and returns it
    /// without its tag.
    pub fn open<'a>(
        &self,
        of: Use,
        offset: u16,
        sealed: &'a mut [u8],
    ) -> core::result::Result<&'a [u8], NotAuthentic> {
        let len = sealed.len().checked_sub(TAG_BYTES).ok_or(NotAuthentic)?;
        match self.encryption {
            Encryption::On => {
                let nonce = of.nonce(offset);
                self.key.open_in_place(nonce, Aad::empty(), sealed).map_err(|_| NotAuthentic)?;
            }
            Encryption::Off => {
                let (bytes, tag) = sealed.split_at(len);
                let made = self.encrypt_copy(of, offset, bytes);
                // All bytes are compared, so that the time does not tell how far they agree.
                let differing =
                    made.iter().zip(tag).fold(0, |differing, (a, b)| differing | (a ^ b));
                if core::hint::black_box(differing) != 0 {
                    return Err(NotAuthentic);
                }
            }
        }
        Ok(&sealed[..len])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(sequence: u64) -> Use {
        Use { sequence, salt: 5 }
    }

    #[test]
    fn a_use_that_comes_back_after_a_restored_snapshot_has_another_nonce() {
        let [a, b] = [0, 1].map(|_| Use::new(7).unwrap());
        assert!(a.sequence == b.sequence && a.salt != b.salt);
        let nonces = [a.nonce(0), b.nonce(0), a.nonce(1), Use { sequence: 8, ..a }.nonce(0)];
        for (i, one) in nonces.iter().enumerate() {
            assert!(nonces[..i].iter().all(|other| other.as_ref() != one.as_ref()));
        }
        // As if one process went on twice: the same bytes, the same key, the same number.
        let seal = Seal::new(Encryption::On).unwrap();
        let [mut first, mut second] = [[3u8; 100]; 2];
        seal.seal(a, 0, &mut first);
        seal.seal(b, 0, &mut second);
        assert_ne!(first, second);
        assert_eq!(seal.open(b, 0, &mut first.clone()), Err(NotAuthentic));
        assert_eq!(seal.open(a, 0, &mut first), Ok(&[3u8; 84][..]));
    }

    #[test]
    fn opens_only_the_same_bytes_at_the_same_place_in_the_same_use() {
        for encryption in [Encryption::On, Encryption::Off] {
            let seal = Seal::new(encryption).unwrap();
            let plain: Vec<u8> = (0..1000).map(|i| i as u8).collect();
            let mut sealed = plain.clone();
            sealed.resize(1000 + TAG_BYTES, 0);
            seal.seal(of(7), 2, &mut sealed);
            assert_eq!(sealed[..1000] == plain[..], encryption == Encryption::Off);

            assert_eq!(seal.open(of(7), 2, &mut sealed.clone()), Ok(&plain[..]));
            assert_eq!(
                seal.open(of(8), 2, &mut sealed.clone()),
                Err(NotAuthentic),
                "another use of the place"
            );
            assert_eq!(
                seal.open(of(7), 3, &mut sealed.clone()),
                Err(NotAuthentic),
                "another place"
            );
            assert_eq!(seal.open(of(7), 2, &mut sealed.clone()[..1015]), Err(NotAuthentic), "cut");
            assert_eq!(seal.open(of(7), 2, &mut []), Err(NotAuthentic), "nothing");
            let other = Seal::new(encryption).unwrap();
            assert_eq!(other.open(of(7), 2, &mut sealed.clone()), Err(NotAuthentic), "another key");
            for bit in [0, 4000, 8 * 1000, 8 * 1016 - 1] {
                let mut bad = sealed.clone();
                bad[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(seal.open(of(7), 2, &mut bad), Err(NotAuthentic), "bit {bit}");
            }
        }
    }
}
