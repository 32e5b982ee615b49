//! Tests of the allocator `Arena` on a region. Blocks must not overlap. They must keep their
//! content when their pages are evicted. After a block is freed, its memory must be free, too.

use crate::common::{MIB, factor, mechanisms, region};
use fastrand::Rng;
use usring_swap::Arena;

/// An allocated block, and the byte that the test filled it with.
struct Block {
    address: usize,
    size: usize,
    byte: u8,
}

impl Block {
    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the arena has allocated these bytes to this thread alone, and they are not freed
        // yet.
        unsafe { std::slice::from_raw_parts_mut(self.address as *mut u8, self.size) }
    }
}

fn use_blocks(arena: &Arena, seed: u64, rounds: usize, largest: usize) {
    let mut random = Rng::with_seed(seed);
    let mut blocks: Vec<Block> = Vec::new();
    for round in 0..rounds {
        if blocks.len() > 100 || (random.usize(..3) == 0 && !blocks.is_empty()) {
            let mut block = blocks.swap_remove(random.usize(..blocks.len()));
            let byte = block.byte;
            assert!(block.bytes().iter().all(|found| *found == byte), "round {round}: {} bytes", block.size);
            arena.free(block.address);
        }
        let most = [64, 3000, largest][random.usize(..3)];
        let size = 1 + random.usize(..most);
        let alignment = 1 << random.usize(..13);
        let Some((address, zeroes)) = arena.allocate(size, alignment) else { continue };
        assert!(address.is_multiple_of(alignment) && arena.size_of(address) >= size);
        let mut block = Block { address, size, byte: 1 + random.usize(..255) as u8 };
        if zeroes {
            assert!(block.bytes().iter().all(|byte| *byte == 0), "round {round}: {size} bytes are no zeroes");
        }
        let byte = block.byte;
        block.bytes().fill(byte);
        blocks.push(block);
    }
    blocks.into_iter().for_each(|block| arena.free(block.address));
}

#[test]
fn blocks_keep_their_contents_and_free_their_memory() {
    for mechanism in mechanisms() {
        let limit = MIB / 2 * factor(mechanism);
        let region = region(16 * limit, limit, "ram:size=160M").mechanism(mechanism).build().unwrap();
        let unit = region.page_size();
        let arena = Arena::new(region).unwrap();
        std::thread::scope(|scope| {
            for thread in 0..3 {
                let arena = &arena;
                scope.spawn(move || use_blocks(arena, thread + 1, 400, 16 * unit));
            }
        });
        let statistics = arena.region().statistics();
        assert!(statistics.evicted > 0, "{statistics:?}");
        // The large blocks are freed. Only pages of small blocks still occupy slots or memory: the
        // arena does not discard these pages.
        assert!(statistics.slots_taken + statistics.resident < 400, "{statistics:?}");
        let (large, _) = arena.allocate(arena.region().size() / 4, 1).expect("room for one large block");
        arena.free(large);
    }
}

#[test]
#[should_panic(expected = "freed")]
fn a_block_freed_twice_panics() {
    let arena = Arena::new(region(4 * MIB, MIB, "ram:size=8M").build().unwrap()).unwrap();
    let (block, _) = arena.allocate(100, 1).unwrap();
    arena.free(block);
    arena.free(block);
}
