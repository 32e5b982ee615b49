//! The virtio block device (virtio 1.2, section 5.2): features, requests and configuration space.

use super::arena::{MOST_DESCRIPTORS, Parameters, TRANSFER, address, slot};
use crate::geometry::{Features, Geometry};
use crate::request::Operation;
use crate::virtqueue::Descriptor;
use usring_sys::Errno;
use usring_sys::width;

/// Feature bits of a virtio block device.
pub mod feature {
    pub const SIZE_MAX: u64 = 1 << 1;
    pub const SEG_MAX: u64 = 1 << 2;
    pub const READ_ONLY: u64 = 1 << 5;
    pub const BLOCK_SIZE: u64 = 1 << 6;
    pub const FLUSH: u64 = 1 << 9;
    pub const MULTIPLE_QUEUES: u64 = 1 << 12;
    pub const DISCARD: u64 = 1 << 13;
    pub const WRITE_ZEROES: u64 = 1 << 14;
    pub const INDIRECT_DESCRIPTORS: u64 = 1 << 28;
    pub const EVENT_INDEX: u64 = 1 << 29;
    pub const VERSION_1: u64 = 1 << 32;

    /// All features that the driver can use. CONFIG_WCE, by which a device reports its cache mode,
    /// is not among them: qemu-storage-daemon reports write-through although it does not write
    /// through. Without CONFIG_WCE, the driver flushes every device that has FLUSH.
    pub const WANTED: u64 = SIZE_MAX
        | SEG_MAX
        | READ_ONLY
        | BLOCK_SIZE
        | FLUSH
        | MULTIPLE_QUEUES
        | DISCARD
        | WRITE_ZEROES
        | INDIRECT_DESCRIPTORS
        | EVENT_INDEX
        | VERSION_1;
}

/// Unit of offsets in requests, in bytes. It does not depend on the logical block.
pub const SECTOR: u64 = 512;
/// Sectors of the largest device. The offset of its last byte must fit into a signed 64-bit number.
const MOST_SECTORS: u64 = i64::MAX as u64 / SECTOR;

/// Bytes of the configuration space that the driver reads.
pub const CONFIGURATION: usize = 60;

/// Request types, indexed by [`Operation`]. A table is faster than a `match`: the processor would
/// often mispredict the jump of a `match`.
const KINDS: [u64; 5] = {
    let mut kinds = [0; 5];
    kinds[Operation::Read as usize] = 0;
    kinds[Operation::Write as usize] = 1;
    kinds[Operation::Flush as usize] = 4;
    kinds[Operation::Discard as usize] = 11;
    kinds[Operation::WriteZeroes as usize] = 13;
    kinds
};

/// Returns the header of a request: its type and its first sector.
#[inline]
pub fn header(operation: Operation, offset: u64) -> [u64; 2] {
    let kind = KINDS[operation as usize];
    // A flush concerns the whole device.
    let sector = if operation == Operation::Flush { 0 } else { offset / SECTOR };
    [kind, sector]
}

pub const HEADER: u32 = 16;

/// Returns the descriptor of a request's header. `slot`: offset of the request's slot in the arena.
#[inline]
pub fn header_descriptor(slot: usize) -> Descriptor {
    Descriptor::readable(address(slot), HEADER)
}

/// Returns the descriptor of one piece of data, from its address and length in the back end.
#[inline]
pub fn data_descriptor(operation: Operation, (address, length): (u64, u32)) -> Descriptor {
    match operation {
        Operation::Read => Descriptor::writable(address, length),
        _ => Descriptor::readable(address, length),
    }
}

/// Returns the descriptor of a request's status. `slot`: offset of the request's slot in the arena.
#[inline]
pub fn status_descriptor(slot: usize) -> Descriptor {
    Descriptor::writable(address(slot + slot::STATUS), 1)
}

/// Returns the data of a discard or a write of zeroes, which is one range: first sector, and number
/// of sectors.
pub fn range(offset: u64, length: u64) -> [u64; 2] {
    [offset / SECTOR, length / SECTOR]
}

pub const RANGE: u32 = 16;

/// Value of a status byte before the device has written it.
pub const NO_STATUS: u8 = 0xff;

/// Converts a status byte to a result (virtio 1.2, section 5.2.6).
pub fn result_of_status(status: u8) -> Result<(), Errno> {
    match status {
        0 => Ok(()),
        2 => Err(Errno::EOPNOTSUPP),
        _ => Err(Errno::EIO),
    }
}

impl Parameters {
    /// Reads the parameters from the configuration space. `features` are the negotiated features.
    pub fn of_configuration(bytes: &[u8; CONFIGURATION], features: u64, queues: u32) -> Parameters {
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let has = |bit: u64| features & bit != 0;
        let sectors = u64::from(word(0)) | u64::from(word(4)) << 32;
        let nonzero = |value: u32, otherwise: u32| if value == 0 { otherwise } else { value };
        let most = width::count(MOST_DESCRIPTORS) - 2;
        let block = if has(feature::BLOCK_SIZE) { nonzero(word(20), 512) } else { 512 };
        Parameters {
            features,
            size: sectors.min(MOST_SECTORS) * SECTOR / u64::from(block) * u64::from(block),
            block,
            segment_bytes: if has(feature::SIZE_MAX) { nonzero(word(8), u32::MAX) } else { u32::MAX },
            segments: if has(feature::SEG_MAX) { nonzero(word(12), 1).min(most) } else { 1 },
            discard_sectors: if has(feature::DISCARD) { word(36) } else { 0 },
            zeroes_sectors: if has(feature::WRITE_ZEROES) { word(48) } else { 0 },
            queues,
            write_back: has(feature::FLUSH),
        }
    }

    pub fn has(&self, bit: u64) -> bool {
        self.features & bit != 0
    }

    /// Returns whether the device has at least one block of a usable size: a power of two, at least
    /// a sector, and not more than a request can transfer.
    pub fn has_blocks(&self) -> bool {
        let is_block = self.block.is_power_of_two() && u64::from(self.block) >= SECTOR;
        is_block && self.size > 0 && self.geometry().transfer > 0
    }

    pub fn geometry(&self) -> Geometry {
        let most = u64::from(self.segments) * u64::from(self.segment_bytes);
        let transfer = width::low(most.min(u64::from(TRANSFER))) / self.block * self.block;
        Geometry {
            size: self.size,
            block: self.block,
            alignment: 1,
            transfer,
            // A request may have more segments than the device allows. The driver then copies the
            // segments to bounce memory, which is one segment.
            segments: crate::driver::MOST_SEGMENTS,
            queues: self.queues,
            features: Features {
                polls: true,
                flush: self.has(feature::FLUSH),
                discard: self.discard_sectors > 0,
                write_zeroes: self.zeroes_sectors > 0,
                read_only: self.has(feature::READ_ONLY),
                forgets: false,
                kernel_holds_memory: false,
            },
        }
    }

    /// Returns the maximum number of bytes of a discard or a write of zeroes: a multiple of the
    /// logical block.
    pub fn most_cleared(&self, operation: Operation) -> u64 {
        let sectors = if operation == Operation::Discard { self.discard_sectors } else { self.zeroes_sectors };
        u64::from(sectors) * SECTOR / u64::from(self.block) * u64::from(self.block)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_capacity_beyond_all_offsets_is_cut_to_the_largest() {
        let mut bytes = [0; CONFIGURATION];
        bytes[..8].copy_from_slice(&(1u64 << 56).to_le_bytes());
        let parameters = Parameters::of_configuration(&bytes, 0, 1);
        assert_eq!(parameters.size, i64::MAX as u64 / SECTOR * SECTOR);
    }

    #[test]
    fn a_device_whose_blocks_are_smaller_than_a_sector_has_no_blocks() {
        let with_block = |block: u32| {
            let mut bytes = [0; CONFIGURATION];
            bytes[..8].copy_from_slice(&2048u64.to_le_bytes());
            bytes[20..24].copy_from_slice(&block.to_le_bytes());
            Parameters::of_configuration(&bytes, feature::BLOCK_SIZE | feature::SIZE_MAX, 1)
        };
        assert!([512, 4096].into_iter().all(|block| with_block(block).has_blocks()));
        assert!([1, 256, 513, 1 << 31].into_iter().all(|block| !with_block(block).has_blocks()));
    }
}
