//! The bytes of a file in memory. Versions of a file share the pages in which they do not differ.
//!
//! Invariants: no page lies wholly beyond the file's size; bytes of a page beyond that size are
//! zeroes; a page that is absent is all zeroes.

use std::collections::BTreeMap;
use std::sync::Arc;
use usring_sys::width;

/// Bytes of a page.
pub const PAGE: usize = 4096;
const PAGE_BYTES: u64 = PAGE as u64;

#[derive(Clone, Debug)]
struct Page {
    bytes: Box<[u8; PAGE]>,
    hash: u64,
}

/// The bytes of a file.
#[derive(Clone, Debug, Default)]
pub struct Content {
    size: u64,
    pages: BTreeMap<u64, Arc<Page>>,
}

/// Mixes a number into a hash. The last step is that of SplitMix64.
pub fn mix(hash: u64, number: u64) -> u64 {
    let mut z = (hash ^ number).wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Returns a hash of `bytes` and of the number of bytes.
pub fn hash_bytes(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<8>();
    let hash = words.iter().fold(bytes.len() as u64, |hash, word| mix(hash, u64::from_le_bytes(*word)));
    rest.iter().fold(hash, |hash, byte| mix(hash, u64::from(*byte)))
}

impl Content {
    /// Returns a content with these bytes.
    pub fn of(bytes: &[u8]) -> Content {
        let mut content = Content::default();
        content.write(0, bytes);
        content
    }

    pub fn size(&self) -> u64 {
        self.size
    }

    /// Writes bytes at an offset. If the bytes end beyond the file's size, the file grows.
    pub fn write(&mut self, offset: u64, bytes: &[u8]) {
        self.size = self.size.max(offset + bytes.len() as u64);
        let mut rest = bytes;
        let mut at = offset;
        while !rest.is_empty() {
            let within = (at % PAGE_BYTES) as usize;
            let (part, behind) = rest.split_at(rest.len().min(PAGE - within));
            self.change_page(at / PAGE_BYTES, |page| page[within..within + part.len()].copy_from_slice(part));
            at += part.len() as u64;
            rest = behind;
        }
    }

    /// Overwrites a part of the file with zeroes. The file does not grow.
    pub fn clear(&mut self, offset: u64, length: u64) {
        let end = offset.saturating_add(length).min(self.size);
        let mut at = offset;
        while at < end {
            let within = at % PAGE_BYTES;
            let part = (PAGE_BYTES - within).min(end - at);
            let index = at / PAGE_BYTES;
            if part == PAGE_BYTES {
                self.pages.remove(&index);
            } else if self.pages.contains_key(&index) {
                self.change_page(index, |page| page[within as usize..width::size(within + part)].fill(0));
            }
            at += part;
        }
    }

    /// Sets the file's size. Bytes beyond it are lost, and new bytes are zeroes.
    pub fn resize(&mut self, size: u64) {
        if size < self.size {
            let old = self.size;
            self.pages.split_off(&size.div_ceil(PAGE_BYTES));
            self.clear(size, old - size);
        }
        self.size = size;
    }

    /// Lets the file grow to this size, if it is smaller.
    pub fn grow(&mut self, size: u64) {
        self.size = self.size.max(size);
    }

    fn change_page(&mut self, index: u64, change: impl FnOnce(&mut [u8; PAGE])) {
        let empty = || Arc::new(Page { bytes: Box::new([0; PAGE]), hash: 0 });
        let page = Arc::make_mut(self.pages.entry(index).or_insert_with(empty));
        change(&mut page.bytes);
        if page.bytes.iter().all(|byte| *byte == 0) {
            self.pages.remove(&index);
        } else {
            page.hash = hash_bytes(&page.bytes[..]);
        }
    }

    /// Returns a hash of the size and the bytes.
    pub fn hash(&self) -> u64 {
        self.pages.iter().fold(mix(1, self.size), |hash, (index, page)| mix(mix(hash, *index), page.hash))
    }

    /// Returns the pages that are not all zeroes: the offset of each, and its bytes up to the
    /// file's end.
    pub fn pieces(&self) -> impl Iterator<Item = (u64, &[u8])> {
        self.pages.iter().map(|(index, page)| {
            let offset = index * PAGE_BYTES;
            let length = (self.size - offset).min(PAGE_BYTES) as usize;
            (offset, &page.bytes[..length])
        })
    }

    /// Returns all bytes.
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; width::size(self.size)];
        for (offset, piece) in self.pieces() {
            bytes[width::size(offset)..width::size(offset) + piece.len()].copy_from_slice(piece);
        }
        bytes
    }

    /// Returns the first offset at which two contents differ. `None`: they are equal.
    pub fn first_difference(&self, other: &Content) -> Option<u64> {
        let mut indexes: Vec<u64> = self.pages.keys().chain(other.pages.keys()).copied().collect();
        indexes.sort_unstable();
        indexes.dedup();
        let byte =
            |content: &Content, index: u64, at: usize| content.pages.get(&index).map_or(0, |page| page.bytes[at]);
        for index in indexes {
            let differs = |at: &usize| byte(self, index, *at) != byte(other, index, *at);
            if let Some(at) = (0..PAGE).find(differs) {
                return Some(index * PAGE_BYTES + at as u64);
            }
        }
        (self.size != other.size).then(|| self.size.min(other.size))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_beyond_the_end_leaves_zeroes_between() {
        let mut content = Content::of(b"ab");
        content.write(6000, b"cd");
        let mut expected = vec![0; 6002];
        expected[..2].copy_from_slice(b"ab");
        expected[6000..].copy_from_slice(b"cd");
        assert_eq!(content.bytes(), expected);
    }

    #[test]
    fn bytes_that_were_cut_off_are_zeroes_when_the_file_grows_again() {
        let mut content = Content::of(&[7; 9000]);
        content.resize(10);
        content.resize(9000);
        let mut expected = vec![0; 9000];
        expected[..10].fill(7);
        assert_eq!(content.bytes(), expected);
    }

    #[test]
    fn equal_bytes_have_equal_hashes_whatever_their_history() {
        let mut content = Content::of(&[1; 5000]);
        content.write(0, &[0; 5000]);
        content.write(4990, &[3; 10]);
        let mut other = Content::default();
        other.resize(5000);
        other.write(4990, &[3; 10]);
        assert_eq!(content.hash(), other.hash());
        assert_eq!(content.first_difference(&other), None);
        other.write(4991, &[4]);
        assert_ne!(content.hash(), other.hash());
        assert_eq!(content.first_difference(&other), Some(4991));
        assert_ne!(Content::of(&[0; 8]).hash(), Content::of(&[0; 9]).hash());
    }

    #[test]
    fn clearing_a_part_does_not_let_the_file_grow() {
        let mut content = Content::of(&[1; 10]);
        content.clear(8, 100);
        assert_eq!(content.bytes(), [1, 1, 1, 1, 1, 1, 1, 1, 0, 0]);
    }
}
