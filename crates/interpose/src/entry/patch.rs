//! Rewrites call sites after their first traps. A call then takes a few ns instead of about 2 µs.
//!
//! A call site is `mov $number,%eax; syscall`, as compilers and libc write it, perhaps with a few
//! moves between registers in between. Only the `mov`, five bytes, is overwritten: a jump to a stub
//! near it takes its place. The stub loads the number, executes the moves, and loads the return
//! address into rcx, as the `syscall` would. Then it jumps to the entry point. A thread that is
//! already past the `mov`, or jumps there, still executes the `syscall` and traps.
//!
//! # Writing code that other threads execute
//! 1. The first byte of the `mov` is replaced by `hlt`. It faults in user space, and the SIGSEGV
//!    handler sends the thread to the stub ([`redirected`]).
//! 2. The other four bytes are written.
//! 3. The first byte of the jump is written.
//!
//! After each step membarrier(2) makes every processor synchronise its instruction stream. So no
//! thread ever executes a mixture of both instructions, whatever their alignment. In a child that
//! is forked between two steps, the handler sends threads to the stub.
//!
//! [`code`] decides which bytes are the `mov`.
//!
//! Some call sites cannot be rewritten: they have another form, their code is not fully understood,
//! no space near them is free, or a policy forbids writable code. Such call sites keep trapping,
//! which is slower but just as correct.

use crate::call::Call;
use crate::entry::code::{self, Form, MOST_BETWEEN, MOV, MOV_EAX, SYSCALL, byte, immediate};
use crate::entry::maps::{self, CodeArea};
use crate::entry::point;
use crate::process::{self, environment};
use crate::runtime::text;
use core::sync::atomic::{AtomicU8, AtomicU32, AtomicUsize, Ordering, fence};
use usring_sys::mapping::PAGE;
use usring_sys::{Errno, SystemCall, spread, width};
use usring_uapi::general as linux;

const JUMP: u8 = 0xe9;
const HALT: u8 = 0xf4;

/// Size of the table of call sites, a power of two. No further call site is rewritten once three
/// quarters of the table are used.
const SITES: usize = 1024;

/// Number of the trap at which a call site is rewritten. Rewriting costs as much as about twenty
/// traps, so it does not pay for a call site that traps only a few times. (A call site of
/// io_uring_enter is rewritten at its first trap, because it will be used again.)
const REWRITE_AT_TRAP: u32 = 12;

struct Site {
    /// Address of the `syscall`.
    address: AtomicUsize,
    traps: AtomicU32,
    /// Address of the `mov`.
    start: AtomicUsize,
    /// Target of the jump that was written at `start`; 0 if the call site was not rewritten.
    stub: AtomicUsize,
}

impl Site {
    /// Returns the stub of this call site, if the code at `start` is still usring's: the jump to
    /// the stub, or the `hlt` that precedes the jump during the rewriting. This function reads the
    /// bytes in memory, because the program may have mapped other code there since then.
    fn rewritten(&self, start: usize) -> Option<usize> {
        let stub = self.stub.load(Ordering::Acquire);
        let is_ours = stub != 0 && self.start.load(Ordering::Relaxed) == start;
        let leads_there = || match byte(start) {
            HALT => true,
            JUMP => immediate(start) == distance(start, stub).to_le_bytes(),
            _ => false,
        };
        (is_ours && leads_there()).then_some(stub)
    }
}

static TABLE: [Site; SITES] = [const {
    Site {
        address: AtomicUsize::new(0),
        traps: AtomicU32::new(0),
        start: AtomicUsize::new(0),
        stub: AtomicUsize::new(0),
    }
}; SITES];
static USED: AtomicU32 = AtomicU32::new(0);

fn sites_from(address: usize) -> impl Iterator<Item = &'static Site> {
    let start = spread::row(address, SITES);
    (0..SITES).map(move |step| &TABLE[(start + step) % SITES])
}

/// Returns the entry that the call site at this address has in the table of call sites. Claims a
/// free entry if the call site has none. `None`: three quarters of the table are used.
fn site_of(address: usize) -> Option<&'static Site> {
    for site in sites_from(address) {
        match site.address.load(Ordering::Acquire) {
            found if found == address => return Some(site),
            0 if USED.load(Ordering::Relaxed) as usize >= SITES / 4 * 3 => return None,
            0 => {}
            _ => continue,
        }
        match site.address.compare_exchange(0, address, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => {
                USED.fetch_add(1, Ordering::Relaxed);
                return Some(site);
            }
            Err(found) if found == address => return Some(site),
            Err(_) => {}
        }
    }
    None
}

/// Returns the stub at which a thread continues after it has executed usring's `hlt` at `start`.
/// `None`: the instruction at `start` is not usring's `hlt`. The SIGSEGV handler calls this
/// function. It can read the bytes at `start`, because the instruction there has just raised the
/// fault.
pub fn redirected(start: usize) -> Option<usize> {
    (0..=MOST_BETWEEN).find_map(|between| site_at(start + MOV + between)?.rewritten(start))
}

/// Returns the entry that the call site at this address has in the table of call sites. `None` if
/// it has no entry.
fn site_at(address: usize) -> Option<&'static Site> {
    sites_from(address)
        .map(|site| (site, site.address.load(Ordering::Acquire)))
        .take_while(|(_, found)| *found != 0)
        .find_map(|(site, found)| (found == address).then_some(site))
}

/// Rewrites the call site of a trapped call, if that is worthwhile and possible.
#[cold]
pub fn rewrite_if_possible(call: &Call) {
    let address = width::size(call.return_address.wrapping_sub(SYSCALL.len() as u64));
    let may_share = matches!(width::low(call.number), linux::__NR_clone | linux::__NR_vfork);
    if environment::forbids_patching() || text::is_library(address) || may_share {
        // A child of clone or vfork may share its parent's memory. The call may then return at the
        // call site on another stack, or twice on one stack. So the call sites of clone and vfork
        // are never rewritten.
        return;
    }
    let Some(site) = site_of(address) else { return };
    let rewrite_at = if width::low(call.number) == linux::__NR_io_uring_enter { 1 } else { REWRITE_AT_TRAP };
    let count = site.traps.fetch_add(1, Ordering::Relaxed) + 1;
    // A call site that was rewritten is rewritten again only if other code has been mapped at its
    // address since then.
    let is_anew = || {
        let is_old = site.stub.load(Ordering::Acquire) != 0;
        is_old && site.rewritten(site.start.load(Ordering::Relaxed)).is_none()
    };
    if count == rewrite_at || count > rewrite_at && is_anew() {
        rewrite(site, address, width::low(call.number));
    }
}

/// Rewrites the call sites at the beginning of a libc function before any of them has trapped. Used
/// for two kinds of calls. Some calls must not trap in certain children. For other calls, no filter
/// can see in all cases whether they have to trap.
pub fn rewrite_ahead(function: usize, number: u32) {
    /// Bytes of the function that are searched. The function has one `syscall` for processes with
    /// one thread and one for processes with several. Both lie well within this length.
    const REACH: usize = 192;
    if environment::forbids_patching() {
        return;
    }
    // The search ends at the end of the page, because the next page may not be mapped.
    let end = (function + REACH).min((function / PAGE + 1) * PAGE - 1);
    for address in code::calls_in(function..end) {
        if Form::of(function, address, number).is_some()
            && let Some(site) = site_of(address)
        {
            rewrite(site, address, number);
        }
    }
}

fn rewrite(site: &Site, address: usize, number: u32) {
    let mut patching = process::current().patching.lock();
    let Some(area) = maps::area_of(address).filter(CodeArea::may_be_rewritten) else { return };
    let Some(function) = code::function_around(address, &area) else { return };
    // The code is decoded under the lock `patching`, because another thread may have rewritten the
    // call site by now.
    let Some(form) = Form::of(function, address, number) else { return };
    if !*patching.get_or_insert_with(register_for_membarrier) {
        return;
    }
    let before = site.stub.load(Ordering::Relaxed);
    let stub = if stubs::holds_code_for(before, &form) { Some(before) } else { stubs::make(&form, &area) };
    site.start.store(form.start, Ordering::Relaxed);
    site.stub.store(stub.unwrap_or(0), Ordering::Release);
    if let Some(stub) = stub
        && write_jump(form.start, stub, &area).is_err()
    {
        site.stub.store(0, Ordering::Release);
    }
}

/// Returns the operand of a jump instruction at `address` that jumps to the stub.
fn distance(address: usize, stub: usize) -> i32 {
    relative(address + 5, stub)
}

/// Returns the operand of an instruction that ends at `end` and refers to `target`, as a distance.
/// The distance fits, because stubs are made within 2 GiB of their call sites.
fn relative(end: usize, target: usize) -> i32 {
    width::int(target.wrapping_sub(end) as u64)
}

/// Overwrites the `mov` at `address` by a jump, in the steps that the head of this file describes.
fn write_jump(address: usize, stub: usize, area: &CodeArea) -> Result<(), Errno> {
    let page = address / PAGE * PAGE;
    protect(page, linux::PROT_READ | linux::PROT_WRITE | linux::PROT_EXEC)?;
    let put = |offset: usize, value: u8| {
        // SAFETY: 1. The page was just made writable, and the five bytes lie on it. 2. They are one
        // `mov` of the program's (`Form::of`). The jump that replaces the `mov` leads to `stub`,
        // which has the effect of the call site's instructions.
        unsafe { (*((address + offset) as *const AtomicU8)).store(value, Ordering::SeqCst) };
    };
    put(0, HALT);
    synchronise();
    for (offset, value) in distance(address, stub).to_le_bytes().into_iter().enumerate() {
        put(1 + offset, value);
    }
    synchronise();
    put(0, JUMP);
    synchronise();
    // If `protect` fails, the page stays writable, which does no harm.
    let _ = protect(page, area.protection);
    Ok(())
}

fn protect(page: usize, protection: u32) -> Result<(), Errno> {
    SystemCall::new(linux::__NR_mprotect, [page as u64, PAGE as u64, u64::from(protection), 0, 0]).run().map(drop)
}

/// Registers the process for [`synchronise`]. Returns whether the kernel supports it.
fn register_for_membarrier() -> bool {
    membarrier(linux::membarrier_cmd::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED_SYNC_CORE as u32)
}

fn synchronise() {
    fence(Ordering::SeqCst);
    membarrier(linux::membarrier_cmd::MEMBARRIER_CMD_PRIVATE_EXPEDITED_SYNC_CORE as u32);
}

fn membarrier(command: u32) -> bool {
    SystemCall::new(linux::__NR_membarrier, [u64::from(command), 0, 0, 0, 0]).run().is_ok()
}

/// The pages of stubs. Callers hold the lock `patching`.
mod stubs {
    use super::*;

    /// Bytes of a stub, whose parts are: `mov $number,%eax`; the moves between registers; `lea
    /// return(%rip),%rcx`; `jmp *entry(%rip)`; the entry point's address.
    const SIZE: usize = 48;
    /// Offset of the entry point's address.
    const ENTRY: usize = 40;
    const PAGES: usize = 64;
    /// Maximum distance in bytes from a call site to the page of its stub: the reach of a jump (2
    /// GiB), less a margin.
    const REACH: usize = (1 << 31) - (1 << 20);

    struct Page {
        address: AtomicUsize,
        used: AtomicUsize,
    }

    static TABLE: [Page; PAGES] = [const { Page { address: AtomicUsize::new(0), used: AtomicUsize::new(0) } }; PAGES];

    /// Writes the stub of a call site, and returns its address. `None`: no page near the call site
    /// can hold it.
    pub fn make(form: &Form, area: &CodeArea) -> Option<usize> {
        let page = page_near(form.start, area)?;
        let (address, used) = (page.address.load(Ordering::Relaxed), page.used.load(Ordering::Relaxed));
        let stub = address + used;
        protect(address, linux::PROT_READ | linux::PROT_WRITE | linux::PROT_EXEC).ok()?;
        let code = code(stub, form);
        // SAFETY: the page belongs to usring and is writable. No thread executes these bytes before
        // a jump to the stub is written.
        unsafe { (stub as *mut [u8; SIZE]).write(code) };
        page.used.store(used + SIZE, Ordering::Relaxed);
        protect(address, linux::PROT_READ | linux::PROT_EXEC).ok()?;
        Some(stub)
    }

    /// Returns whether an existing stub holds the code that this call site needs.
    pub fn holds_code_for(stub: usize, form: &Form) -> bool {
        // SAFETY: the address is not 0. So it is the address of a stub that `make` has written, and
        // the page of a stub stays mapped.
        stub != 0 && unsafe { (stub as *const [u8; SIZE]).read() } == code(stub, form)
    }

    fn code(stub: usize, form: &Form) -> [u8; SIZE] {
        let mut code = [0xcc; SIZE];
        code[0] = MOV_EAX;
        code[1..MOV].copy_from_slice(&form.number.to_le_bytes());
        let lea = MOV + form.length;
        code[MOV..lea].copy_from_slice(&form.between[..form.length]);
        code[lea..lea + 3].copy_from_slice(&[0x48, 0x8d, 0x0d]);
        let jump = lea + 7;
        let return_address = super::relative(stub + jump, form.end);
        code[lea + 3..jump].copy_from_slice(&return_address.to_le_bytes());
        code[jump..jump + 2].copy_from_slice(&[0xff, 0x25]);
        let end = jump + 6;
        code[jump + 2..end].copy_from_slice(&width::count(ENTRY - end).to_le_bytes());
        code[ENTRY..].copy_from_slice(&point::patched_entry().to_le_bytes());
        code
    }

    fn page_near(site: usize, area: &CodeArea) -> Option<&'static Page> {
        for page in &TABLE {
            let address = page.address.load(Ordering::Relaxed);
            if address == 0 {
                let fresh = map_near(site, area)?;
                page.address.store(fresh, Ordering::Relaxed);
                return Some(page);
            }
            if address.abs_diff(site) < REACH && page.used.load(Ordering::Relaxed) + SIZE <= PAGE {
                return Some(page);
            }
        }
        None
    }

    fn map_near(site: usize, area: &CodeArea) -> Option<usize> {
        let wanted = area.room_below.checked_sub(PAGE)?;
        if site - wanted >= REACH || wanted < 1 << 16 {
            return None;
        }
        let flags = linux::MAP_PRIVATE | linux::MAP_ANONYMOUS | linux::MAP_FIXED_NOREPLACE;
        let protection = u64::from(linux::PROT_READ | linux::PROT_EXEC);
        let arguments = [wanted as u64, PAGE as u64, protection, u64::from(flags), (-1i64).cast_unsigned(), 0];
        let got = width::size(SystemCall::with_six(linux::__NR_mmap, arguments).run().ok()?);
        // Before Linux 4.17 the kernel takes the address only as a hint, so the new page may be too
        // far away from the call site.
        (got.abs_diff(site) < REACH).then_some(got)
    }
}
