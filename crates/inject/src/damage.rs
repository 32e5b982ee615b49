//! Damage to data that was read: flips bits in the program's memory.

use alloc::vec::Vec;
use usring_device::random::Random;
use usring_sys::plain::IoVector;
use usring_sys::{UserAddress, user_memory};

/// Number of bits to flip, and the seed from which their positions are drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flip {
    pub bits: u32,
    pub seed: u64,
}

impl Flip {
    /// Flips bits in the first `bytes` bytes of the vectors `members`. Memory that cannot be
    /// written is left as it is.
    pub fn apply(self, members: &[IoVector], bytes: u64) {
        for place in self.places(bytes) {
            if let Some(address) = address_of(members, place / 8)
                && let Ok(byte) = user_memory::read::<u8>(address)
            {
                let _ = user_memory::write(address, byte ^ 1 << (place % 8));
            }
        }
    }

    /// Returns the positions of the bits to flip, each position once, as offsets from the first bit
    /// of the data.
    fn places(self, bytes: u64) -> Vec<u64> {
        let total = bytes.saturating_mul(8);
        let wanted = u64::from(self.bits).min(total);
        let mut random = Random::new(self.seed);
        let mut places: Vec<u64> = Vec::new();
        while (places.len() as u64) < wanted {
            let place = random.below(total);
            if !places.contains(&place) {
                places.push(place);
            }
        }
        places
    }
}

/// Returns the address of the byte with the number `byte`, counted through all of `members`.
/// `None`: `members` have fewer bytes.
fn address_of(members: &[IoVector], mut byte: u64) -> Option<UserAddress> {
    for member in members {
        if byte < member.length {
            return Some(UserAddress(member.base).offset(byte));
        }
        byte -= member.length;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_bits_as_asked_for_are_flipped_and_the_same_ones_again() {
        let mut data = [[0u8; 16], [0; 16]];
        let members: Vec<IoVector> =
            data.iter_mut().map(|half| IoVector { base: half.as_mut_ptr() as u64, length: 16 }).collect();
        let ones = |data: &[[u8; 16]; 2]| data.as_flattened().iter().map(|byte| byte.count_ones()).sum::<u32>();
        let flip = Flip { bits: 7, seed: 3 };
        flip.apply(&members, 20);
        assert_eq!(ones(&data), 7);
        assert_eq!(&data[1][4..], [0; 12], "only bytes that were read");
        flip.apply(&members, 20);
        assert_eq!(ones(&data), 0);
        Flip { bits: 100, seed: 3 }.apply(&members, 1);
        assert_eq!((data[0][0], ones(&data)), (255, 8));
    }
}
