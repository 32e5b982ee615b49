//! ThreadSanitizer of the program. Threads that pass memory to each other through a ring do not
//! race, because the ring orders their accesses. ThreadSanitizer sees neither the kernel's nor
//! usring's part of this order, and would report races. So usring annotates this order:
//!
//! | event | annotation |
//! |---|---|
//! | io_uring_enter begins; a function of liburing that submits is called | release of the ring's CQ tail |
//! | io_uring_enter ends; a function of liburing that looks for CQEs returns | acquire of the ring's CQ tail |
//! | a MSG_RING is submitted | release of the target ring's CQ tail |
//!
//! The annotated object is the CQ tail in the program's own mapping. So the program's code acquires
//! the tail, too, if it reads the tail as an atomic word, as liburing's inline functions do.
//!
//! ThreadSanitizer does not know usring's threads, so its functions are called only in threads of
//! the program. The work of an SQ thread is not annotated. The calls of liburing's functions are
//! annotated instead.

use crate::call::Call;
use crate::files::descriptors::{self, File, Found};
use crate::files::liburing::OfLiburing;
use crate::files::rings;
use crate::runtime::{imports, libc};
use core::sync::atomic::{AtomicUsize, Ordering};
use usring_engine::observers::{self, Observer, Submitted};
use usring_sys::own_threads::{self, Owner};
use usring_sys::signals;
use usring_uapi::opcode;

static OBSERVER: Observer = Observer { submitted, completed: |_| {}, stepped: None, opened: |_| {}, closed: |_| {} };

/// `__tsan_acquire` and `__tsan_release`.
type Annotate = unsafe extern "C" fn(u64);

/// The addresses of the functions, or 0.
static ACQUIRE: AtomicUsize = AtomicUsize::new(0);
static RELEASE: AtomicUsize = AtomicUsize::new(0);

/// Returns whether the program has ThreadSanitizer.
pub fn is_on() -> bool {
    RELEASE.load(Ordering::Relaxed) != 0
}

/// Begins to annotate, if the program has ThreadSanitizer. Returns whether it has.
///
/// Errors: a message of one sentence.
pub fn connect() -> Result<bool, &'static str> {
    if !libc::has_sanitizer() {
        return Ok(false);
    }
    let (Some(acquire), Some(release)) = (imports::function(c"__tsan_acquire"), imports::function(c"__tsan_release"))
    else {
        return Ok(false);
    };
    if !observers::add(&OBSERVER) {
        return Err("there are too many observers of requests");
    }
    ACQUIRE.store(acquire, Ordering::Relaxed);
    RELEASE.store(release, Ordering::Relaxed);
    Ok(true)
}

fn annotate(function: &AtomicUsize, object: u64) {
    let function = function.load(Ordering::Relaxed);
    if function != 0 && object != 0 {
        // SAFETY: 1. The address is that of a function of type `Annotate`. 2. It takes any address
        // of the program's memory, and does not access the memory. 3. The callers run in threads of
        // the program.
        unsafe { core::mem::transmute::<usize, Annotate>(function)(object) };
    }
}

fn submitted(submitted: &Submitted) {
    if submitted.sqe.opcode != opcode::MSG_RING
        || matches!(own_threads::owner_of(signals::thread_id()), Owner::Usring | Owner::Submitter)
    {
        return;
    }
    let target = submitted.file.unwrap_or(submitted.sqe.fd);
    if let Found::Ring(tail) = descriptors::with_inside(target, File::cq_tail) {
        annotate(&RELEASE, tail);
    }
}

/// Annotates the beginning of an io_uring_enter call. Returns the annotated object, which the
/// caller passes to [`end`].
pub fn begin(call: &Call) -> u64 {
    if !is_on() {
        return 0;
    }
    let object = rings::cq_tail(call).unwrap_or(0);
    annotate(&RELEASE, object);
    object
}

/// Annotates the end of an io_uring_enter call.
pub fn end(object: u64) {
    annotate(&ACQUIRE, object);
}

/// Annotates the call of a function of liburing. `ring`: the ring that the function gets.
pub fn before(ring: &OfLiburing) {
    annotate(&RELEASE, ring.known_tail());
}

/// Annotates the return of a function of liburing. `ring`: the ring that the function got.
pub fn after(ring: &OfLiburing) {
    annotate(&ACQUIRE, ring.known_tail());
}
