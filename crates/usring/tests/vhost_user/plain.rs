//! A back end written for these tests, for behaviour that Debian's back end does not show. Each
//! test chooses the features that the back end offers, down to almost none. The back end serves one
//! queue. A [`Plan`] says whether it serves all requests in order, or ends ("dies") at a chosen
//! request. It may keep an in-flight record.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixListener;
use std::sync::{Arc, Mutex, mpsc};
use std::thread::JoinHandle;
use vhost::vhost_user::message::*;
use vhost::vhost_user::{Error, Result, VhostUserBackendReqHandlerMut};

pub const INDIRECT: u64 = 1 << 28;
pub const EVENT_INDEX: u64 = 1 << 29;
const ALWAYS: u64 = 1 << 32 | 1 << 30 | 1 << 1 | 1 << 2 | 1 << 9;
/// Stands for a flush in the list of written sectors.
pub const FLUSH: u64 = u64::MAX;
/// Largest segment of a request, in bytes. It is small, so that one request needs many descriptors.
const SIZE_MAX: u32 = 3072;
const SEG_MAX: u32 = 60;

/// How a back end handles the requests that it takes.
#[derive(Clone)]
pub enum Plan {
    Serve,
    /// Takes `takes` requests, completes those whose positions are in `completes`, in this order,
    /// and ends. With `torn` it ends in the middle of writing the last completion to its in-flight
    /// record.
    Die {
        takes: usize,
        completes: Vec<usize>,
        torn: bool,
    },
}

/// The state that outlives a back end: the blocks, and the log of writes.
#[derive(Clone, Default)]
pub struct Disk {
    pub blocks: Arc<Mutex<Vec<u8>>>,
    /// The log: the sector of each write that was carried out, and [`FLUSH`] for each flush.
    pub written: Arc<Mutex<Vec<u64>>>,
}

pub struct Plain {
    life: Option<JoinHandle<()>>,
    stop: mpsc::Sender<()>,
}

impl Plain {
    /// Starts a back end in a thread. It listens on `path`, and serves the first front end that
    /// connects.
    pub fn start(path: &str, disk: Disk, features: u64, protocol: VhostUserProtocolFeatures, plan: Plan) -> Plain {
        let _ = std::fs::remove_file(path);
        let listener = UnixListener::bind(path).unwrap();
        let (stop, stopped) = mpsc::channel();
        let state = State {
            disk,
            features: features | ALWAYS,
            protocol: protocol | VhostUserProtocolFeatures::CONFIG,
            plan,
            agreed: 0,
            regions: Vec::new(),
            size: 0,
            rings: [0; 3],
            next: 0,
            kick: None,
            call: None,
            record: None,
            fetched: Vec::new(),
        };
        let life = std::thread::spawn(move || live(listener, state, stopped));
        Plain { life: Some(life), stop }
    }

    /// Waits until the back end has ended as its [`Plan`] says.
    pub fn has_died(mut self) {
        self.life.take().unwrap().join().unwrap();
    }
}

impl Drop for Plain {
    fn drop(&mut self) {
        let _ = self.stop.send(());
        if let Some(life) = self.life.take() {
            let end = life.join();
            assert!(end.is_ok() || std::thread::panicking(), "the back end panicked");
        }
    }
}

fn live(listener: UnixListener, state: State, stopped: mpsc::Receiver<()>) {
    let connection = loop {
        if readable(&[listener.as_raw_fd()])[0] {
            break listener.accept().unwrap().0;
        }
        if stopped.try_recv() != Err(mpsc::TryRecvError::Empty) {
            return;
        }
    };
    let socket = connection.as_raw_fd();
    let state = Arc::new(Mutex::new(state));
    let mut handler = vhost::vhost_user::BackendReqHandler::from_stream(connection, Arc::clone(&state));
    loop {
        let kick = state.lock().unwrap().kick.as_ref().map_or(-1, AsRawFd::as_raw_fd);
        let [message, kicked] = readable(&[socket, kick]);
        if message && handler.handle_request().is_err() {
            return;
        }
        if kicked && !state.lock().unwrap().work() {
            return;
        }
        if stopped.try_recv() != Err(mpsc::TryRecvError::Empty) {
            return;
        }
    }
}

/// Waits at most 10 ms. Returns for each descriptor whether it is readable.
fn readable<const N: usize>(descriptors: &[i32; N]) -> [bool; N] {
    let mut watched = descriptors.map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 });
    // SAFETY: the array has `N` entries, as its count says.
    unsafe { libc::poll(watched.as_mut_ptr(), N as libc::nfds_t, 10) };
    watched.map(|one| one.revents != 0)
}

struct Region {
    address: u64,
    length: u64,
    memory: *mut u8,
}

// SAFETY: the mapping is never removed, and one thread at a time uses it.
unsafe impl Send for Region {}

struct State {
    disk: Disk,
    features: u64,
    protocol: VhostUserProtocolFeatures,
    plan: Plan,
    agreed: u64,
    regions: Vec<Region>,
    size: u16,
    /// Addresses of the descriptor table, the available ring and the used ring.
    rings: [u64; 3],
    next: u16,
    kick: Option<File>,
    call: Option<File>,
    record: Option<(File, Region)>,
    /// Heads (first descriptors) of the requests that the back end has taken and not completed.
    fetched: Vec<u16>,
}

fn map(file: &File, offset: u64, length: u64, address: u64) -> Region {
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_NORESERVE);
    // SAFETY: the call makes a new mapping.
    let memory =
        unsafe { libc::mmap(std::ptr::null_mut(), (offset + length) as usize, protection, flags, file.as_raw_fd(), 0) };
    assert_ne!(memory, libc::MAP_FAILED);
    Region { address, length, memory: memory.cast::<u8>().wrapping_add(offset as usize) }
}

impl State {
    fn at(&self, address: u64, length: u64) -> *mut u8 {
        let region = self
            .regions
            .iter()
            .find(|region| address >= region.address && address + length <= region.address + region.length);
        let region = region.expect("an address lies in memory that was shared");
        region.memory.wrapping_add((address - region.address) as usize)
    }

    fn read<T: Copy>(&self, address: u64) -> T {
        // SAFETY: the address is mapped, and any bytes are a valid number.
        unsafe { self.at(address, size_of::<T>() as u64).cast::<T>().read_volatile() }
    }

    fn write<T: Copy>(&self, address: u64, value: T) {
        // SAFETY: the address is mapped, and any bytes are a valid number.
        unsafe { self.at(address, size_of::<T>() as u64).cast::<T>().write_volatile(value) }
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
    }

    /// Takes the published requests and handles them as the plan says. Returns `false` if the plan
    /// ends the back end.
    fn work(&mut self) -> bool {
        let mut count = [0; 8];
        let _ = self.kick.as_ref().unwrap().read(&mut count);
        self.write(self.rings[2], 0u16);
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
        while self.next != self.read::<u16>(self.rings[1] + 2) {
            let head: u16 = self.read(self.rings[1] + 4 + 2 * u64::from(self.next % self.size));
            self.next = self.next.wrapping_add(1);
            self.fetched.push(head);
            self.note(head, 1);
            // Sets the available event, so that the driver notifies the back end of the next
            // request.
            self.write(self.rings[2] + 4 + 8 * u64::from(self.size), self.next);
        }
        match self.plan.clone() {
            Plan::Serve => std::mem::take(&mut self.fetched).into_iter().for_each(|head| self.complete(head, false)),
            Plan::Die { takes, completes, torn } if self.fetched.len() >= takes => {
                for (number, place) in completes.iter().enumerate() {
                    self.complete(self.fetched[*place], torn && number + 1 == completes.len());
                }
                return false;
            }
            Plan::Die { .. } => {}
        }
        true
    }

    /// Writes to the in-flight record whether the request with this head is in flight.
    fn note(&self, head: u16, in_flight: u8) {
        if let Some((_, record)) = &self.record {
            let place = record.memory.wrapping_add(16 + 16 * usize::from(head));
            // SAFETY: the in-flight record is mapped. It has 16 bytes for each descriptor, behind a
            // header of 16 bytes, and `head` is a descriptor's index.
            unsafe {
                place.wrapping_add(8).cast::<u64>().write_volatile(u64::from(self.next));
                place.write_volatile(in_flight);
            }
        }
    }

    fn complete(&mut self, head: u16, torn: bool) {
        self.carry_out(head);
        let used = self.rings[2];
        let index: u16 = self.read(used + 2);
        let entry = used + 4 + 8 * u64::from(index % self.size);
        self.write(entry, [u32::from(head), 1]);
        if let Some((_, record)) = &self.record {
            // SAFETY: offset 12 of the record's header holds the head that was completed last.
            unsafe { record.memory.wrapping_add(12).cast::<u16>().write_volatile(head) };
        }
        self.write(used + 2, index.wrapping_add(1));
        if torn {
            return;
        }
        self.note(head, 0);
        if let Some((_, record)) = &self.record {
            // SAFETY: offset 14 of the record's header holds the used index.
            unsafe { record.memory.wrapping_add(14).cast::<u16>().write_volatile(index.wrapping_add(1)) };
        }
        let wanted = if self.agreed & EVENT_INDEX != 0 {
            self.read::<u16>(self.rings[1] + 4 + 2 * u64::from(self.size)) == index
        } else {
            self.read::<u16>(self.rings[1]) & 1 == 0
        };
        if wanted {
            self.call.as_ref().unwrap().write_all(&1u64.to_ne_bytes()).unwrap();
        }
    }

    /// Returns the descriptors of a request's chain: address, length, and whether the device writes
    /// to it.
    fn chain(&self, head: u16) -> Vec<(u64, u32, bool)> {
        let (mut table, mut index, mut chain) = (self.rings[0], head, Vec::new());
        loop {
            let [address, rest]: [u64; 2] = self.read(table + 16 * u64::from(index));
            let flags = rest >> 32;
            if flags & 4 != 0 {
                assert!(self.agreed & INDIRECT != 0, "indirect descriptors were not negotiated");
                (table, index) = (address, 0);
                continue;
            }
            chain.push((address, rest as u32, flags & 2 != 0));
            if flags & 1 == 0 {
                return chain;
            }
            index = (rest >> 48) as u16;
        }
    }

    fn carry_out(&self, head: u16) {
        let chain = self.chain(head);
        let (kind, sector): (u64, u64) = self.read::<[u64; 2]>(chain[0].0).into();
        let mut at = sector as usize * 512;
        let mut blocks = self.disk.blocks.lock().unwrap();
        assert!(chain.len() - 2 <= SEG_MAX as usize);
        for (address, length, writable) in &chain[1..chain.len() - 1] {
            assert!(*length <= SIZE_MAX);
            let (memory, there) = (self.at(*address, u64::from(*length)), &mut blocks[at..][..*length as usize]);
            at += there.len();
            // SAFETY: the memory is mapped with this length. The driver does not touch it until the
            // request is done.
            match (kind, unsafe { std::slice::from_raw_parts_mut(memory, there.len()) }) {
                (0, memory) if *writable => memory.copy_from_slice(there),
                (1, memory) if !*writable => there.copy_from_slice(memory),
                other => panic!("{other:?}"),
            }
        }
        match kind {
            1 => self.disk.written.lock().unwrap().push(sector),
            4 => self.disk.written.lock().unwrap().push(FLUSH),
            _ => {}
        }
        self.write(chain[chain.len() - 1].0, 0u8);
    }

    /// Takes the requests that the previous back end had in flight, in the order of the in-flight
    /// record. Then continues with the next published request.
    fn resume(&mut self) {
        let Some((_, record)) = &self.record else { return };
        let used: u16 = self.read(self.rings[2] + 2);
        let header = record.memory.cast::<u16>();
        // SAFETY: the addresses are in the in-flight record's header and states.
        let mut rest: Vec<_> = unsafe {
            let (last, noted) = (header.wrapping_add(6).read_volatile(), header.wrapping_add(7));
            if noted.read_volatile() != used {
                record.memory.wrapping_add(16 + 16 * usize::from(last)).write_volatile(0);
                noted.write_volatile(used);
            }
            let state = |head: usize| record.memory.wrapping_add(16 + 16 * head);
            (0..usize::from(self.size))
                .filter(|head| state(*head).read_volatile() == 1)
                .map(|head| (state(head).wrapping_add(8).cast::<u64>().read_volatile(), head as u16))
                .collect()
        };
        rest.sort_unstable();
        self.next = used.wrapping_add(rest.len() as u16);
        self.fetched = rest.into_iter().map(|(_, head)| head).collect();
    }
}

fn not_offered<T>() -> Result<T> {
    Err(Error::InvalidOperation("not offered"))
}

impl VhostUserBackendReqHandlerMut for State {
    fn set_owner(&mut self) -> Result<()> {
        Ok(())
    }

    fn get_features(&mut self) -> Result<u64> {
        Ok(self.features)
    }

    fn set_features(&mut self, features: u64) -> Result<()> {
        self.agreed = features;
        Ok(())
    }

    fn get_protocol_features(&mut self) -> Result<VhostUserProtocolFeatures> {
        Ok(self.protocol)
    }

    fn set_protocol_features(&mut self, _: u64) -> Result<()> {
        Ok(())
    }

    fn get_config(&mut self, _: u32, size: u32, _: VhostUserConfigFlags) -> Result<Vec<u8>> {
        let mut bytes = vec![0; size as usize];
        let sectors = self.disk.blocks.lock().unwrap().len() as u64 / 512;
        bytes[..8].copy_from_slice(&sectors.to_le_bytes());
        bytes[8..12].copy_from_slice(&SIZE_MAX.to_le_bytes());
        bytes[12..16].copy_from_slice(&SEG_MAX.to_le_bytes());
        Ok(bytes)
    }

    fn set_mem_table(
        &mut self,
        regions: &[VhostUserMemoryRegion],
        files: Vec<File>,
        _: Option<bool>,
    ) -> Result<Option<Vec<vhost::VhostUserMemoryRegionBase>>> {
        let regions = regions.iter().zip(&files);
        let map = |(region, file): (&VhostUserMemoryRegion, &File)| {
            map(file, region.mmap_offset, region.memory_size, region.guest_phys_addr)
        };
        self.regions = regions.map(map).collect();
        Ok(None)
    }

    fn set_vring_num(&mut self, _: u32, size: u32) -> Result<()> {
        self.size = size as u16;
        Ok(())
    }

    fn set_vring_addr(
        &mut self,
        _: u32,
        _: VhostUserVringAddrFlags,
        descriptor: u64,
        used: u64,
        available: u64,
        _: u64,
    ) -> Result<()> {
        self.rings = [descriptor, available, used];
        Ok(())
    }

    fn set_vring_base(&mut self, _: u32, base: u32) -> Result<()> {
        self.next = base as u16;
        Ok(())
    }

    fn get_vring_base(&mut self, index: u32) -> Result<VhostUserVringState> {
        self.kick = None;
        Ok(VhostUserVringState::new(index, u32::from(self.next)))
    }

    fn set_vring_kick(&mut self, _: u8, file: Option<File>) -> Result<()> {
        self.kick = file;
        self.resume();
        Ok(())
    }

    fn set_vring_call(&mut self, _: u8, file: Option<File>) -> Result<()> {
        self.call = file;
        Ok(())
    }

    fn set_vring_err(&mut self, _: u8, _: Option<File>) -> Result<()> {
        Ok(())
    }

    fn set_vring_enable(&mut self, _: u32, _: bool) -> Result<()> {
        Ok(())
    }

    fn get_inflight_fd(&mut self, wanted: &VhostUserInflight) -> Result<(VhostUserInflight, File)> {
        let file = tempfile::tempfile().unwrap();
        let size = 16 + 16 * u64::from(wanted.queue_size);
        file.set_len(size).unwrap();
        Ok((VhostUserInflight::new(size, 0, 1, wanted.queue_size), file))
    }

    fn set_inflight_fd(&mut self, inflight: &VhostUserInflight, file: File) -> Result<()> {
        let region = map(&file, inflight.mmap_offset, inflight.mmap_size, 0);
        self.record = Some((file, region));
        Ok(())
    }

    fn reset_owner(&mut self) -> Result<()> {
        not_offered()
    }

    fn reset_device(&mut self) -> Result<()> {
        not_offered()
    }

    fn get_queue_num(&mut self) -> Result<u64> {
        not_offered()
    }

    fn set_config(&mut self, _: u32, _: &[u8], _: VhostUserConfigFlags) -> Result<()> {
        not_offered()
    }

    fn set_gpu_socket(&mut self, _: vhost::vhost_user::GpuBackend) -> Result<()> {
        not_offered()
    }

    fn get_shared_object(&mut self, _: VhostUserSharedMsg) -> Result<File> {
        not_offered()
    }

    fn get_max_mem_slots(&mut self) -> Result<u64> {
        not_offered()
    }

    fn add_mem_region(
        &mut self,
        _: &VhostUserSingleMemoryRegion,
        _: File,
        _: Option<bool>,
    ) -> Result<Option<vhost::VhostUserMemoryRegionBase>> {
        not_offered()
    }

    fn remove_mem_region(&mut self, _: &VhostUserSingleMemoryRegion) -> Result<()> {
        not_offered()
    }

    fn set_device_state_fd(
        &mut self,
        _: VhostTransferStateDirection,
        _: VhostTransferStatePhase,
        _: File,
    ) -> Result<Option<File>> {
        not_offered()
    }

    fn check_device_state(&mut self) -> Result<()> {
        not_offered()
    }

    fn get_shmem_config(&mut self) -> Result<VhostUserShMemConfig> {
        not_offered()
    }

    fn set_log_base(&mut self, _: &VhostUserLog, _: File) -> Result<()> {
        not_offered()
    }
}
