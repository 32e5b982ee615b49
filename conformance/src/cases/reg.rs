//! The opcodes of io_uring_register(2). They are plain numbers, because some cases pass numbers
//! that are no opcode.

pub const BUFFERS: u32 = 0;
pub const UNREGISTER_BUFFERS: u32 = 1;
pub const FILES: u32 = 2;
pub const UNREGISTER_FILES: u32 = 3;
pub const EVENTFD: u32 = 4;
pub const UNREGISTER_EVENTFD: u32 = 5;
pub const FILES_UPDATE: u32 = 6;
pub const EVENTFD_ASYNC: u32 = 7;
pub const PROBE: u32 = 8;
pub const PERSONALITY: u32 = 9;
pub const UNREGISTER_PERSONALITY: u32 = 10;
pub const RESTRICTIONS: u32 = 11;
pub const ENABLE_RINGS: u32 = 12;
pub const FILES2: u32 = 13;
pub const FILES_UPDATE2: u32 = 14;
pub const BUFFERS2: u32 = 15;
pub const BUFFERS_UPDATE: u32 = 16;
pub const IOWQ_AFF: u32 = 17;
pub const UNREGISTER_IOWQ_AFF: u32 = 18;
pub const IOWQ_MAX_WORKERS: u32 = 19;
pub const RING_FDS: u32 = 20;
pub const UNREGISTER_RING_FDS: u32 = 21;
pub const PBUF_RING: u32 = 22;
pub const UNREGISTER_PBUF_RING: u32 = 23;
pub const SYNC_CANCEL: u32 = 24;
pub const FILE_ALLOC_RANGE: u32 = 25;
pub const PBUF_STATUS: u32 = 26;
pub const CLOCK: u32 = 29;
pub const CLONE_BUFFERS: u32 = 30;
/// Flag in a register opcode. With this flag, the call's descriptor argument is the index of a
/// registered ring.
pub const USE_REGISTERED_RING: u32 = 1 << 31;
