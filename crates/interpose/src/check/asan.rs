//! AddressSanitizer of the program: finds its functions, and passes its errors to the checker.
//!
//! The functions are those of its public interface (`sanitizer/asan_interface.h`). They are looked
//! up once, when the program starts. The checker reads and writes the shadow memory itself
//! ([`usring_check::shadow`]), because usring's own threads must not call a function that expects a
//! thread of libc.

use crate::runtime::imports;
use alloc::boxed::Box;
use core::ffi::CStr;
use core::sync::atomic::{AtomicUsize, Ordering};
use usring_check::Registers;
use usring_check::shadow::{self, MOST_CALLERS, Sanitizer};
use usring_sys::{UserAddress, user_memory};

/// Type of `__asan_get_alloc_stack` and `__asan_get_free_stack`. Arguments: an address, an array
/// for return addresses, the array's length, and space for a thread's number. Result: the number of
/// return addresses.
type GetStack = unsafe extern "C" fn(*const u8, *mut u64, usize, *mut i32) -> usize;
/// `__asan_get_report_address` and `__asan_get_report_bp`.
type GetWord = unsafe extern "C" fn() -> u64;

/// The addresses of the functions, or 0.
static ALLOCATED: AtomicUsize = AtomicUsize::new(0);
static FREED: AtomicUsize = AtomicUsize::new(0);
static REPORT_ADDRESS: AtomicUsize = AtomicUsize::new(0);
static REPORT_FRAME: AtomicUsize = AtomicUsize::new(0);

/// Begins to use the program's AddressSanitizer, if it has one.
pub fn connect() {
    let function = |name: &CStr| imports::function(name).unwrap_or(0);
    let mapping = function(c"__asan_get_shadow_mapping");
    if mapping == 0 {
        return;
    }
    let (mut scale, mut offset) = (0usize, 0usize);
    // SAFETY: a function of this name has this type. It stores two words.
    unsafe {
        let mapping = core::mem::transmute::<usize, unsafe extern "C" fn(*mut usize, *mut usize)>(mapping);
        mapping(&raw mut scale, &raw mut offset);
    }
    // The scale is the binary logarithm of a granule's size, which is 8 to 128 bytes. With any
    // other value, usring does not use AddressSanitizer's shadow memory.
    let Some(scale) = u32::try_from(scale).ok().filter(|scale| (3..=7).contains(scale)) else { return };
    ALLOCATED.store(function(c"__asan_get_alloc_stack"), Ordering::Relaxed);
    FREED.store(function(c"__asan_get_free_stack"), Ordering::Relaxed);
    REPORT_ADDRESS.store(function(c"__asan_get_report_address"), Ordering::Relaxed);
    REPORT_FRAME.store(function(c"__asan_get_report_bp"), Ordering::Relaxed);
    shadow::start(Box::leak(Box::new(Sanitizer { scale, offset: offset as u64, stack_of })));
    let set = function(c"__asan_set_error_report_callback");
    if set != 0 {
        // SAFETY: a function of this name has this type. It stores the callback.
        unsafe {
            core::mem::transmute::<usize, unsafe extern "C" fn(unsafe extern "C" fn(*const u8))>(set)(reported);
        }
    }
}

fn stack_of(address: u64, is_freed: bool, callers: &mut [u64; MOST_CALLERS]) -> usize {
    let function = if is_freed { &FREED } else { &ALLOCATED }.load(Ordering::Relaxed);
    if function == 0 {
        return 0;
    }
    let mut thread = 0;
    // SAFETY: 1. The address is that of a function of type `GetStack`. 2. It writes at most
    // `MOST_CALLERS` words to the array, and one number. 3. It only compares the address with those
    // of its blocks. 4. The caller's thread is one of the program's.
    unsafe {
        let function = core::mem::transmute::<usize, GetStack>(function);
        function(address as *const u8, callers.as_mut_ptr(), callers.len(), &raw mut thread)
    }
}

/// Runs when AddressSanitizer has printed a report, in the thread that made the error. Notifies the
/// checker of the address, and of the call or access that made the error.
unsafe extern "C" fn reported(_: *const u8) {
    let word = |function: &AtomicUsize| {
        let function = function.load(Ordering::Relaxed);
        // SAFETY: the address is that of a function of type `GetWord`. AddressSanitizer allows this
        // call within its error callback.
        (function != 0).then(|| unsafe { core::mem::transmute::<usize, GetWord>(function)() })
    };
    let (Some(address), Some(frame)) = (word(&REPORT_ADDRESS), word(&REPORT_FRAME)) else { return };
    // The program has called a function of the sanitizer: one that checks an access, or one that
    // replaces a function of libc. `frame` is the frame of that function.
    let read = |offset: u64| user_memory::read::<u64>(UserAddress(frame).offset(offset)).unwrap_or(0);
    usring_check::touched(address, Registers { instruction: read(8), stack: frame + 16, frame: read(0) });
}
