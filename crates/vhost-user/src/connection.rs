//! One connection to a back end. Sends the messages in the order that the vhost-user protocol
//! prescribes. After any error the caller closes the connection.

use super::exchange_timeout::{self, ExchangeTimeout};
use std::fs::File;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use usring_device::driver::vhost_user::arena::{self, Arena, Parameters, QueueArea};
use usring_device::driver::vhost_user::block::{CONFIGURATION, feature};
use usring_sys::width;
use vhost::vhost_user::message::{
    VhostUserConfigFlags, VhostUserHeaderFlag, VhostUserInflight, VhostUserProtocolFeatures, VhostUserVirtioFeatures,
};
use vhost::vhost_user::{Frontend, VhostUserFrontend};
use vhost::{VhostBackend, VhostUserMemoryRegionInfo, VringConfigData};
use vmm_sys_util::eventfd::EventFd;

/// Reason why an exchange with the back end failed. The text completes a sentence that begins with
/// "the back end on PATH".
pub type Failure = String;

/// The optional features of the vhost-user protocol that usring uses.
const PROTOCOL: VhostUserProtocolFeatures = VhostUserProtocolFeatures::MQ
    .union(VhostUserProtocolFeatures::CONFIG)
    .union(VhostUserProtocolFeatures::REPLY_ACK)
    .union(VhostUserProtocolFeatures::INFLIGHT_SHMFD)
    .union(VhostUserProtocolFeatures::CONFIGURE_MEM_SLOTS);

/// A file whose memory is shared with the back end. Messages and queues name the memory's first
/// byte by `address`.
pub struct Region {
    pub file: File,
    pub length: u64,
    pub address: u64,
}

/// The eventfds of a queue. usring writes to `kick`; the back end writes to `call` and `error`.
pub struct Signals<'a> {
    pub kick: &'a EventFd,
    pub call: &'a EventFd,
    pub error: &'a EventFd,
}

pub struct Connection {
    frontend: Frontend,
    socket: UnixStream,
    exchange_timeout: Arc<ExchangeTimeout>,
    /// Virtio's feature bits that the back end offers.
    features: u64,
    protocol: VhostUserProtocolFeatures,
    pub queues: u32,
    memory_slots: usize,
}

fn failed<E: std::fmt::Display>(what: &str) -> impl FnOnce(E) -> Failure {
    move |error| format!("does not {what} ({error})")
}

impl Connection {
    /// Connects to the back end and asks for its features. If `reconnects` is set, the device must
    /// survive a restart of the back end. So usring asks the back end to record its requests in
    /// flight, which costs the back end time for each request.
    pub fn open(path: &str, reconnects: bool) -> Result<Connection, Failure> {
        let stream = exchange_timeout::connect(Path::new(path))?;
        let socket = stream.try_clone().map_err(failed("allow its socket to be watched"))?;
        let exchange_timeout = Arc::new(ExchangeTimeout::with(&socket)?);
        exchange_timeout.clone().during(|| Self::negotiate(socket, stream, exchange_timeout, reconnects))
    }

    /// Negotiates the protocol features, and makes usring the back end's front end. `reconnects`:
    /// usring asks for a record of requests in flight, if the back end offers this feature.
    fn negotiate(
        socket: UnixStream,
        stream: UnixStream,
        exchange_timeout: Arc<ExchangeTimeout>,
        reconnects: bool,
    ) -> Result<Connection, Failure> {
        let mut frontend = Frontend::from_stream(stream, 1);
        let features = frontend.get_features().map_err(|error| {
            format!("does not answer ({error}); it serves only one front end, perhaps another one already")
        })?;
        let negotiates = VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits();
        if features & negotiates == 0 || features & feature::VERSION_1 == 0 {
            return Err("is too old: it offers no protocol features, or no virtio 1".into());
        }
        let mut protocol = frontend.get_protocol_features().map_err(failed("report its protocol features"))? & PROTOCOL;
        protocol.set(
            VhostUserProtocolFeatures::INFLIGHT_SHMFD,
            reconnects && protocol.contains(VhostUserProtocolFeatures::INFLIGHT_SHMFD),
        );
        if !protocol.contains(VhostUserProtocolFeatures::CONFIG) {
            return Err("is not a block device: it has no configuration space".into());
        }
        frontend.set_protocol_features(protocol).map_err(failed("accept protocol features"))?;
        if protocol.contains(VhostUserProtocolFeatures::REPLY_ACK) {
            frontend.set_hdr_flags(VhostUserHeaderFlag::NEED_REPLY);
        }
        let queues = if protocol.contains(VhostUserProtocolFeatures::MQ) {
            let queues = frontend.get_queue_num().map_err(failed("report its number of queues"))?;
            u32::try_from(queues).unwrap_or(u32::MAX)
        } else {
            1u32
        };
        let memory_slots = if protocol.contains(VhostUserProtocolFeatures::CONFIGURE_MEM_SLOTS) {
            width::size(frontend.get_max_mem_slots().map_err(failed("report its number of memory slots"))?)
        } else {
            0
        };
        frontend.set_owner().map_err(failed("accept an owner"))?;
        Ok(Connection { frontend, socket, exchange_timeout, features, protocol, queues, memory_slots })
    }

    /// Runs an exchange of messages. Fails if the exchange takes longer than
    /// [`EXCHANGE_TIMEOUT`](exchange_timeout::EXCHANGE_TIMEOUT).
    fn in_time<T>(&mut self, exchange: impl FnOnce(&mut Self) -> Result<T, Failure>) -> Result<T, Failure> {
        self.exchange_timeout.clone().during(|| exchange(self))
    }

    /// Returns the socket. It is readable or hung up once the back end has ended.
    pub fn socket(&self) -> &UnixStream {
        &self.socket
    }

    /// Accepts every virtio feature that both sides know, and reads the device's parameters.
    pub fn accept_features(&mut self, queues: u32) -> Result<Parameters, Failure> {
        let features = self.features & feature::WANTED;
        self.in_time(|connection| {
            connection.accept(features)?;
            connection.configuration(features, queues)
        })
    }

    /// Accepts the virtio features that were negotiated with the previous back end. Fails if this
    /// back end lacks one of these features or has fewer queues, or if its device is smaller or has
    /// another block size.
    pub fn accept_features_again(&mut self, parameters: &Parameters) -> Result<(), Failure> {
        if parameters.features & !self.features != 0 || parameters.queues > self.queues {
            return Err("differs from the earlier back end: features or queues are missing".into());
        }
        let present = self.in_time(|connection| {
            connection.accept(parameters.features)?;
            connection.configuration(parameters.features, parameters.queues)
        })?;
        if present.size < parameters.size || present.block != parameters.block {
            return Err("differs from the earlier back end: its size or block size has changed".into());
        }
        Ok(())
    }

    fn accept(&mut self, features: u64) -> Result<(), Failure> {
        let negotiated = features | VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits();
        self.frontend.set_features(negotiated).map_err(failed("take features"))
    }

    fn configuration(&mut self, features: u64, queues: u32) -> Result<Parameters, Failure> {
        let none = [0; CONFIGURATION];
        let flags = VhostUserConfigFlags::empty();
        let answer = self.frontend.get_config(0, width::count(CONFIGURATION), flags, &none);
        let (_, bytes) = answer.map_err(failed("report its configuration"))?;
        let bytes: &[u8; CONFIGURATION] =
            bytes.as_slice().try_into().map_err(failed("report its whole configuration"))?;
        let parameters = Parameters::of_configuration(bytes, features, queues);
        if !parameters.has_blocks() {
            return Err("has no readable blocks".into());
        }
        Ok(parameters)
    }

    /// Asks the back end for its record of requests in flight. The record's memory outlives the
    /// back end. `None` if the back end keeps no record.
    pub fn begin_record(&mut self, queues: u32) -> Result<Option<(VhostUserInflight, File)>, Failure> {
        if !self.protocol.contains(VhostUserProtocolFeatures::INFLIGHT_SHMFD) {
            return Ok(None);
        }
        let count = u16::try_from(queues).map_err(failed("number its queues"))?;
        let wanted = VhostUserInflight::new(0, 0, count, arena::QUEUE_SIZE);
        self.in_time(|connection| {
            let record = connection.frontend.get_inflight_fd(&wanted);
            let (record, file) = record.map_err(failed("make a record of requests"))?;
            connection.set_record(&record, &file)?;
            Ok(Some((record, file)))
        })
    }

    /// Passes the previous back end's record of requests in flight to this back end. Returns
    /// `false` if this back end keeps no record.
    pub fn go_on_with_record(&mut self, record: &VhostUserInflight, file: &File) -> Result<bool, Failure> {
        if !self.protocol.contains(VhostUserProtocolFeatures::INFLIGHT_SHMFD) {
            return Ok(false);
        }
        self.in_time(|connection| connection.set_record(record, file).map(|()| true))
    }

    fn set_record(&mut self, record: &VhostUserInflight, file: &File) -> Result<(), Failure> {
        self.frontend.set_inflight_fd(record, file.as_raw_fd()).map_err(failed("accept a record of requests"))
    }

    /// Returns whether memory can be shared while queues are in use (CONFIGURE_MEM_SLOTS).
    pub fn has_memory_slots(&self) -> bool {
        self.memory_slots > 0
    }

    /// Returns how many memory regions the back end accepts.
    pub fn most_regions(&self) -> usize {
        // Without memory slots, one message carries all regions. A message has at most eight
        // descriptors, one for each region.
        if self.has_memory_slots() { self.memory_slots } else { 8 }
    }

    /// Shares the memory of `regions` with the back end. Called before any queue is started.
    pub fn set_memory<'a>(&mut self, regions: impl Iterator<Item = &'a Region>) -> Result<(), Failure> {
        self.in_time(|connection| connection.set_all_memory(regions))
    }

    fn set_all_memory<'a>(&mut self, regions: impl Iterator<Item = &'a Region>) -> Result<(), Failure> {
        let mut regions = regions.map(describe);
        if !self.has_memory_slots() {
            let all: Vec<_> = regions.collect();
            return self.frontend.set_mem_table(&all).map(drop).map_err(failed("accept its memory"));
        }
        let first = regions.next().ok_or("has no memory")?;
        self.frontend.set_mem_table(&[first]).map_err(failed("accept its memory"))?;
        regions.try_for_each(|region| self.frontend.add_mem_region(&region).map(drop)).map_err(failed("take memory"))
    }

    pub fn add_memory(&mut self, region: &Region) -> Result<(), Failure> {
        self.in_time(|connection| {
            connection.frontend.add_mem_region(&describe(region)).map(drop).map_err(failed("take memory"))
        })
    }

    pub fn remove_memory(&mut self, region: &Region) -> Result<(), Failure> {
        self.in_time(|connection| {
            connection.frontend.remove_mem_region(&describe(region)).map_err(failed("release memory"))
        })
    }

    /// Starts a queue. The back end continues with the first request that the used ring does not
    /// list as completed.
    pub fn start_queue(
        &mut self,
        index: u32,
        arena: &Arena,
        area: QueueArea,
        signals: &Signals,
    ) -> Result<(), Failure> {
        let layout = area.layout();
        let (_, used) = arena.progress(area);
        let addresses = VringConfigData {
            queue_max_size: arena::QUEUE_SIZE,
            queue_size: arena::QUEUE_SIZE,
            flags: 0,
            desc_table_addr: arena::address(layout.descriptors),
            used_ring_addr: arena::address(layout.used),
            avail_ring_addr: arena::address(layout.available),
            log_addr: None,
        };
        let queue = index as usize;
        let set_up = |frontend: &mut Frontend| {
            frontend.set_vring_num(queue, arena::QUEUE_SIZE)?;
            frontend.set_vring_base(queue, used)?;
            frontend.set_vring_addr(queue, &addresses)?;
            frontend.set_vring_err(queue, signals.error)?;
            frontend.set_vring_call(queue, signals.call)?;
            frontend.set_vring_kick(queue, signals.kick)?;
            frontend.set_vring_enable(queue, true)
        };
        self.in_time(|connection| set_up(&mut connection.frontend).map_err(failed("start a queue")))?;
        // Requests may have been published while the back end did not serve the queue, and the back
        // end may have missed their signals. So usring signals the queue once more.
        let _ = signals.kick.write(1);
        Ok(())
    }

    /// Stops a queue. Afterwards the back end does not access the queue's memory.
    pub fn stop_queue(&mut self, index: u32) -> Result<(), Failure> {
        let stop = |frontend: &mut Frontend| {
            frontend.set_vring_enable(index as usize, false)?;
            frontend.get_vring_base(index as usize)
        };
        self.in_time(|connection| stop(&mut connection.frontend).map(drop).map_err(failed("stop a queue")))
    }
}

fn describe(region: &Region) -> VhostUserMemoryRegionInfo {
    VhostUserMemoryRegionInfo {
        guest_phys_addr: region.address,
        memory_size: region.length,
        // The protocol names rings by user addresses, and buffers by guest addresses. In usring, a
        // byte's user address equals its guest address.
        userspace_addr: region.address,
        mmap_offset: 0,
        mmap_handle: region.file.as_raw_fd(),
    }
}

/// Returns a duplicate of a descriptor. The caller keeps the original.
pub fn duplicate(number: i32) -> std::io::Result<File> {
    if number < 0 {
        return Err(std::io::ErrorKind::InvalidInput.into());
    }
    // SAFETY: `number` is not −1. The borrow ends with the call that duplicates the descriptor. If
    // `number` is not open, that call fails with EBADF.
    unsafe { BorrowedFd::borrow_raw(number) }.try_clone_to_owned().map(File::from)
}
