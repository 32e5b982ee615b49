//! The call sites by which a program reaches io_uring_enter(2).

use std::arch::asm;
use std::str::FromStr;

/// Wait for completions.
pub const GETEVENTS: u32 = 1;
/// Wake the SQ thread.
pub const SQ_WAKEUP: u32 = 2;

/// A kind of call site.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Site {
    /// `mov $426, %eax; syscall`, as in liburing.
    Inline,
    /// A bare `syscall` between bytes that nobody can put a jump into.
    Bare,
    /// libc's `syscall()`, as the `io-uring` crate has it.
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
    /// Submits and waits; what the call answers.
    #[inline]
    pub fn enter(self, ring: i32, to_submit: u32, min_complete: u32) -> i64 {
        self.enter_with(ring, to_submit, min_complete, GETEVENTS)
    }

    /// The same with any flags of the call.
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

/// A function of its own around these instructions, which make the call.
macro_rules! enters_by {
    ($name:ident: $($instruction:literal)*) => {
        #[inline(never)]
        fn $name(ring: i32, to_submit: u32, min_complete: u32, flags: u32) -> i64 {
            let answer: i64;
            // SAFETY: 1. The call gets no address; the requests' own were
            // vouched for when they were pushed. 2. The clobbers are those of
            // the x86-64 system call convention. 3. What lies around the
            // instruction is jumped over.
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
// The bytes around it are `hlt`.
enters_by!(enter_bare: "jmp 2f" ".fill 130, 1, 0xf4" "2:" "syscall" "jmp 3f" ".fill 130, 1, 0xf4" "3:");
