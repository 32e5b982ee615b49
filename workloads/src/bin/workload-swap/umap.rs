//! Baseline: a pager built like LLNL's UMap, as its publications describe it.
//!
//! - One thread sleeps in poll(2) until userfaultfd(2) has faults. It reads all pending faults,
//!   sorts them, and passes them to a pool of fillers.
//! - Each filler fills one page at a time, which wakes the thread that has touched that page.
//! - A pool of evictors starts when the buffer of resident pages is 90 % full. It evicts the oldest
//!   pages, one by one, until the buffer is 70 % full. An evictor write-protects a page, writes it
//!   to the store, and drops it.
//! - Each pool has as many threads as the machine has processors.
//! - A store in a file is accessed by pread(2) and pwrite(2). A store in memory is copied.
//!
//! Like UMap, the pager needs userfaultfd(2) also for faults in kernel mode, which is a privilege.

use super::memory::{Memory, PAGE};
use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use usring_sys::userfault::{FaultEvent, FaultReport, UserFault};

/// Fill levels at which eviction starts and ends, in percent of the buffer.
const EVICTION_START_PERCENT: usize = 90;
const EVICTION_END_PERCENT: usize = 70;

/// Maximum number of faults that one read(2) of the userfaultfd returns.
const MOST_FAULTS_PER_READ: usize = 64;

/// A block of memory, aligned for direct I/O.
#[repr(C, align(4096))]
struct Block([u8; PAGE]);

enum Store {
    Memory(*mut u8),
    File(File),
}

// SAFETY: a thread accesses a page's block only after it has marked the page as busy.
unsafe impl Send for Store {}
// SAFETY: a thread accesses a page's block only after it has marked the page as busy.
unsafe impl Sync for Store {}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// The program has never touched the page, so the store has no content for it.
    Untouched,
    Out,
    /// A thread is filling or evicting the page.
    Busy,
    Clean,
    Dirty,
}

struct Buffer {
    pages: Vec<State>,
    /// The resident pages, oldest first.
    order: VecDeque<usize>,
    /// Number of pages that are resident or being filled.
    used: usize,
    limit: usize,
    /// Whether the evictors are running.
    evicting: bool,
    faults: VecDeque<FaultEvent>,
}

pub struct Umap {
    start: usize,
    fault: UserFault,
    store: Store,
    buffer: Mutex<Buffer>,
    /// Signalled when there are faults. The fillers wait for it.
    filled: Condvar,
    /// Signalled when there are pages to evict. The evictors wait for it.
    wanted: Condvar,
    /// Signalled when a page is no longer busy, or when the buffer has space for another page.
    changed: Condvar,
}

impl Umap {
    /// Makes memory with this pager. The store is the file at `path` or, if `path` is empty, in
    /// memory. The pager's threads run until the process ends.
    pub fn make(path: &Path, size: usize, limit: usize) -> Result<&'static dyn Memory, String> {
        let fault = UserFault::open(FaultReport::Events).map_err(|error| format!("no userfaultfd: {error}"))?;
        let start = map(size)? as usize;
        fault.register(start, size).map_err(|error| format!("userfaultfd: {error}"))?;
        let store = if path.as_os_str().is_empty() {
            Store::Memory(map(size)?)
        } else {
            let opened = OpenOptions::new().read(true).write(true).custom_flags(libc::O_DIRECT).open(path);
            Store::File(opened.map_err(|error| format!("{}: {error}", path.display()))?)
        };
        let buffer = Buffer {
            pages: vec![State::Untouched; size / PAGE],
            order: VecDeque::new(),
            used: 0,
            limit: limit / PAGE,
            evicting: false,
            faults: VecDeque::new(),
        };
        let umap: &'static Umap = Box::leak(Box::new(Umap {
            start,
            fault,
            store,
            buffer: Mutex::new(buffer),
            filled: Condvar::new(),
            wanted: Condvar::new(),
            changed: Condvar::new(),
        }));
        std::thread::spawn(|| umap.serve_faults());
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            std::thread::spawn(|| umap.fill());
            std::thread::spawn(|| umap.evict());
        }
        Ok(umap)
    }

    fn lock(&self) -> MutexGuard<'_, Buffer> {
        self.buffer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn address(&self, page: usize) -> usize {
        self.start + page * PAGE
    }

    /// The loop of the thread that reads faults.
    fn serve_faults(&self) {
        let mut watched = libc::pollfd { fd: self.fault.number(), events: libc::POLLIN, revents: 0 };
        loop {
            // SAFETY: the array has one entry, and the call names one.
            unsafe { libc::poll(&raw mut watched, 1, -1) };
            let mut faults: Vec<FaultEvent> =
                std::iter::from_fn(|| self.fault.read()).take(MOST_FAULTS_PER_READ).collect();
            faults.sort_by_key(|fault| fault.address);
            if !faults.is_empty() {
                self.lock().faults.extend(faults);
                self.filled.notify_all();
            }
        }
    }

    fn fill(&self) {
        let mut block = Box::new(Block([0; PAGE]));
        let mut buffer = self.lock();
        loop {
            let Some(fault) = buffer.faults.pop_front() else {
                buffer = wait(&self.filled, buffer);
                continue;
            };
            let page = (fault.address - self.start) / PAGE;
            while buffer.pages[page] == State::Busy {
                buffer = wait(&self.changed, buffer);
            }
            buffer = match buffer.pages[page] {
                before @ (State::Untouched | State::Out) => self.bring_in(buffer, page, before, fault, &mut block),
                _ => {
                    // The page became resident through another fault, or this fault is a write to a
                    // write-protected page.
                    if fault.write {
                        buffer.pages[page] = State::Dirty;
                        let _ = self.fault.protect(self.address(page), PAGE, false);
                    }
                    self.fault.wake(self.address(page), PAGE);
                    buffer
                }
            };
        }
    }

    fn bring_in<'a>(
        &'a self,
        mut buffer: MutexGuard<'a, Buffer>,
        page: usize,
        before: State,
        fault: FaultEvent,
        block: &mut Block,
    ) -> MutexGuard<'a, Buffer> {
        buffer.pages[page] = State::Busy;
        while buffer.used == buffer.limit {
            buffer = wait(&self.changed, buffer);
        }
        buffer.used += 1;
        if buffer.used * 100 >= buffer.limit * EVICTION_START_PERCENT && !buffer.evicting {
            buffer.evicting = true;
            self.wanted.notify_all();
        }
        drop(buffer);
        match before {
            State::Untouched => block.0.fill(0),
            _ => self.read(page, block),
        }
        let copied = self.fault.copy(self.address(page), &block.0, !fault.write);
        assert!(copied.is_ok(), "a page cannot be filled: {copied:?}");
        let mut buffer = self.lock();
        buffer.pages[page] = if fault.write { State::Dirty } else { State::Clean };
        buffer.order.push_back(page);
        self.changed.notify_all();
        buffer
    }

    fn evict(&self) {
        let mut block = Box::new(Block([0; PAGE]));
        let mut buffer = self.lock();
        loop {
            if buffer.used * 100 <= buffer.limit * EVICTION_END_PERCENT {
                buffer.evicting = false;
            }
            let oldest = if buffer.evicting { buffer.order.pop_front() } else { None };
            let Some(page) = oldest else {
                buffer.evicting = false;
                buffer = wait(&self.wanted, buffer);
                continue;
            };
            let is_dirty = buffer.pages[page] == State::Dirty;
            buffer.pages[page] = State::Busy;
            drop(buffer);
            self.evict_page(page, is_dirty, &mut block);
            buffer = self.lock();
            buffer.pages[page] = State::Out;
            buffer.used -= 1;
            self.changed.notify_all();
        }
    }

    fn evict_page(&self, page: usize, is_dirty: bool, block: &mut Block) {
        let address = self.address(page);
        if is_dirty {
            let protected = self.fault.protect(address, PAGE, true);
            assert!(protected.is_ok(), "a page cannot be protected: {protected:?}");
            // SAFETY: the page is resident and write-protected.
            unsafe { (address as *const u8).copy_to_nonoverlapping(block.0.as_mut_ptr(), PAGE) };
            self.write(page, block);
        }
        // SAFETY: this thread has marked the page as busy, and the store has the page's content.
        unsafe { libc::madvise(address as *mut libc::c_void, PAGE, libc::MADV_DONTNEED) };
    }

    fn read(&self, page: usize, block: &mut Block) {
        match &self.store {
            // SAFETY: the page's block lies within the store.
            Store::Memory(start) => unsafe {
                start.add(page * PAGE).copy_to_nonoverlapping(block.0.as_mut_ptr(), PAGE);
            },
            Store::File(file) => file.read_exact_at(&mut block.0, (page * PAGE) as u64).expect("the store can be read"),
        }
    }

    fn write(&self, page: usize, block: &Block) {
        match &self.store {
            // SAFETY: the page's block lies within the store.
            Store::Memory(start) => unsafe {
                start.add(page * PAGE).copy_from_nonoverlapping(block.0.as_ptr(), PAGE);
            },
            Store::File(file) => file.write_all_at(&block.0, (page * PAGE) as u64).expect("the store can be written"),
        }
    }
}

fn wait<'a>(event: &Condvar, guard: MutexGuard<'a, Buffer>) -> MutexGuard<'a, Buffer> {
    event.wait(guard).unwrap_or_else(PoisonError::into_inner)
}

/// Maps memory that is never unmapped.
fn map(size: usize) -> Result<*mut u8, String> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a new mapping, which replaces no other.
    let start = unsafe { libc::mmap(std::ptr::null_mut(), size, protection, flags, -1, 0) };
    if start == libc::MAP_FAILED {
        return Err(std::io::Error::last_os_error().to_string());
    }
    // SAFETY: the call only advises about this mapping.
    unsafe { libc::madvise(start, size, libc::MADV_NOHUGEPAGE) };
    Ok(start.cast())
}

impl Memory for Umap {
    fn start(&self) -> *mut u8 {
        self.start as *mut u8
    }

    fn evict_all(&self) -> Result<(), String> {
        let mut buffer = self.lock();
        let mut block = Box::new(Block([0; PAGE]));
        while let Some(page) = buffer.order.pop_front() {
            let is_dirty = buffer.pages[page] == State::Dirty;
            self.evict_page(page, is_dirty, &mut block);
            buffer.pages[page] = State::Out;
            buffer.used -= 1;
        }
        Ok(())
    }
}
