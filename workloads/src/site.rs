//! The kinds of call sites of io_uring_enter(2) in programs. usring can rewrite only some of them.

use io_uring::IoUring;
use std::arch::asm;
use std::os::fd::AsRawFd;
use std::str::FromStr;

/// IORING_ENTER_GETEVENTS: wait for completions.
pub const GETEVENTS: u32 = 1;
/// IORING_ENTER_SQ_WAKEUP: wake the SQ thread.
pub const SQ_WAKEUP: u32 = 2;
/// IORING_ENTER_REGISTERED_RING: the call names the ring by its index among the thread's registered
/// rings.
const REGISTERED_RING: u32 = 1 << 4;

/// A kind of call site.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Site {
    /// `mov $426, %eax; syscall`, as in liburing.
    Inline,
    /// A bare `syscall` instruction. The bytes around it leave no space for a jump, so usring
    /// cannot rewrite it.
    Bare,
    /// libc's `syscall()`, as the `io-uring` crate uses it.
    Libc,
}

impl FromStr for Site {
    type Err = ();

    fn from_str(name: &str) -> Result<Site, ()> {
        match name {
            "inline" => Ok(Site::Inline),
            "bare" => Ok(Site::Bare),
            "libc" => Ok(Site::Libc),
            _ => Err(()),
        }
    }
}

impl Site {
    /// Calls io_uring_enter(2) with GETEVENTS. Returns the number of submitted requests. A negative
    /// number means an error.
    #[inline]
    pub fn enter(self, ring: i32, to_submit: u32, min_complete: u32) -> i64 {
        self.enter_with(ring, to_submit, min_complete, GETEVENTS)
    }

    /// Calls io_uring_enter(2) with these flags. Returns the number of submitted requests. A
    /// negative number means an error.
    #[inline]
    pub fn enter_with(self, ring: i32, to_submit: u32, min_complete: u32, flags: u32) -> i64 {
        match self {
            Site::Inline => enter_inline(ring, to_submit, min_complete, flags),
            Site::Bare => enter_bare(ring, to_submit, min_complete, flags),
            Site::Libc => {
                let none = std::ptr::null::<libc::c_void>();
                // SAFETY: the call gets no address.
                unsafe { libc::syscall(libc::SYS_io_uring_enter, ring, to_submit, min_complete, flags, none, 0) }
            }
        }
    }
}

/// The number by which io_uring_enter(2) names a ring, and the flag that says whether the number is
/// a descriptor or the index of a registered ring.
#[derive(Clone, Copy, Debug)]
pub struct Entrance {
    number: i32,
    flags: u32,
}

impl Entrance {
    /// Names the ring by its descriptor.
    pub fn plain(ring: &IoUring) -> Entrance {
        Entrance { number: ring.as_raw_fd(), flags: 0 }
    }

    /// Registers the ring with this thread and names it by its index, which saves the kernel the
    /// look-up of the descriptor.
    pub fn registered(ring: &IoUring) -> Result<Entrance, String> {
        const REGISTER_RING_FDS: u32 = 20;
        /// The kernel's `struct io_uring_rsrc_update`.
        #[repr(C)]
        struct Update {
            offset: u32,
            reserved: u32,
            data: u64,
        }
        // The kernel chooses the index and writes it here.
        let mut update = Update { offset: u32::MAX, reserved: 0, data: ring.as_raw_fd() as u64 };
        // SAFETY: the call reads and writes one `io_uring_rsrc_update`.
        let answer = unsafe {
            libc::syscall(libc::SYS_io_uring_register, ring.as_raw_fd(), REGISTER_RING_FDS, &raw mut update, 1)
        };
        match answer {
            1 => Ok(Entrance { number: update.offset as i32, flags: REGISTERED_RING }),
            _ => Err(format!("the ring is not registered: {}", std::io::Error::last_os_error())),
        }
    }

    /// Calls io_uring_enter(2) from this kind of call site, with these flags. Returns the number of
    /// submitted requests. A negative number means an error.
    #[inline]
    pub fn enter(self, site: Site, to_submit: u32, min_complete: u32, flags: u32) -> i64 {
        site.enter_with(self.number, to_submit, min_complete, flags | self.flags)
    }
}

/// Makes a ring. With `best`, the ring has the setup that is fastest on the kernel: single issuer,
/// deferred task work, and a descriptor that is registered with the thread.
pub fn ring(entries: u32, best: bool) -> Result<(IoUring, Entrance), String> {
    let mut builder = IoUring::builder();
    if best {
        builder.setup_single_issuer().setup_defer_taskrun();
    }
    let ring = builder.build(entries).map_err(|error| format!("no ring: {error}"))?;
    let entrance = if best { Entrance::registered(&ring)? } else { Entrance::plain(&ring) };
    Ok((ring, entrance))
}

/// Defines a function that calls io_uring_enter(2) by these instructions.
macro_rules! enters_by {
    ($name:ident: $($instruction:literal)*) => {
        #[inline(never)]
        fn $name(ring: i32, to_submit: u32, min_complete: u32, flags: u32) -> i64 {
            let answer: i64;
            // SAFETY: 1. The call gets no address. The code that pushed the requests promised that
            // their memory is valid. 2. The clobbers are those of the x86-64 system call
            // convention. 3. The code jumps over the padding bytes around the instruction.
            unsafe {
                asm!(
                    $($instruction,)*
                    inout("rax") libc::SYS_io_uring_enter => answer,
                    in("rdi") i64::from(ring),
                    in("rsi") u64::from(to_submit),
                    in("rdx") u64::from(min_complete),
                    in("r10") u64::from(flags),
                    in("r8") 0,
                    in("r9") 0,
                    out("rcx") _,
                    out("r11") _,
                    options(nostack),
                );
            }
            answer
        }
    };
}

const _: () = assert!(libc::SYS_io_uring_enter == 426);
enters_by!(enter_inline: "mov eax, 426" "syscall");
// The bytes around the instruction are `hlt`.
enters_by!(enter_bare: "jmp 2f" ".fill 130, 1, 0xf4" "2:" "syscall" "jmp 3f" ".fill 130, 1, 0xf4" "3:");
