//! `usring trace FILE --perfetto OUT`: the trace for ui.perfetto.dev, as a protobuf of TrackEvents.
//!
//! | track | content |
//! |---|---|
//! | process | the tracks below |
//! | ring: lanes, so that no two slices of a lane overlap | a slice for each request; in it, slices for its waits |
//! | ring: counters | requests in flight, and CQEs that the program has not taken |
//! | thread | an instant for each submission by the thread; for a worker, a slice for each request |
//! | device of a ring: lanes | a slice for each request |
//!
//! A flow connects the submission, the request, and its slices on workers and devices.

use super::file::Loaded;
use super::print::{opcode_name, reason_words};
use super::proto::{Message, write_packet};
use super::requests::{Cause, PostedCqe, Request, Requests, RingInfo};
use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, HashMap, HashSet};
use std::io::{self, Write};
use usring_trace::format::is_aio;
use usring_uapi::io_uring::IORING_SETUP_SQPOLL;

// Types of a TrackEvent.
const BEGIN: u64 = 1;
const END: u64 = 2;
const INSTANT: u64 = 3;
const COUNTER: u64 = 4;

/// The lanes of one ring or device. A lane is a track, on which no two slices overlap in time.
#[derive(Default)]
struct Lanes {
    /// The track identifier of each lane.
    tracks: Vec<u64>,
    /// The lanes without a slice, by index.
    free: BTreeSet<usize>,
    /// The lanes that a slice occupies, ordered by the time at which this slice ends.
    occupied: BinaryHeap<Reverse<(u64, usize)>>,
}

impl Lanes {
    /// Occupies the free lane with the lowest index for a slice, and returns that index. If no lane
    /// is free, returns the index of a lane that does not exist yet, and the caller makes its
    /// track. The caller must pass slices in the order in which they begin.
    fn occupy(&mut self, from: u64, until: u64) -> usize {
        while let Some(Reverse((end, lane))) = self.occupied.peek().copied()
            && end <= from
        {
            self.occupied.pop();
            self.free.insert(lane);
        }
        let lane = self.free.pop_first().unwrap_or(self.tracks.len());
        self.occupied.push(Reverse((until, lane)));
        lane
    }
}

/// A device of a ring: index of the process, number of the ring, and index of the ring's channel
/// (queue pair) to the device.
type Device = (usize, u32, u64);

/// A slice on the track of a device.
struct DeviceSlice {
    device: Device,
    from: u64,
    until: Option<u64>,
    name: &'static str,
    flow: u64,
}

struct Writer<'a> {
    output: &'a mut dyn Write,
    trace: &'a Loaded,
    requests: &'a Requests,
    /// The identifier that the latest track has.
    last: u64,
    processes: HashMap<usize, u64>,
    threads: HashMap<(usize, u32), u64>,
    /// Track and lanes of each ring. The key: index of the process, and number of the ring.
    rings: HashMap<(usize, u32), (u64, Lanes)>,
    /// Rings with an SQ thread, by process and ring.
    sq_threads: HashSet<(usize, u32)>,
    device_slices: Vec<DeviceSlice>,
}

/// Writes the selected requests. A request's index in `requests` becomes the identifier of its
/// flow.
pub fn write<'a>(
    output: &mut dyn Write,
    trace: &Loaded,
    requests: &Requests,
    selected: impl Iterator<Item = (usize, &'a Request)>,
) -> io::Result<()> {
    let mut writer = Writer {
        output,
        trace,
        requests,
        last: 0,
        processes: HashMap::new(),
        threads: HashMap::new(),
        rings: HashMap::new(),
        sq_threads: requests.rings.iter().filter(|ring| has_sq_thread(ring)).map(RingInfo::key).collect(),
        device_slices: Vec::new(),
    };
    let mut counters: HashMap<(usize, u32), Counts> = HashMap::new();
    for (index, request) in selected {
        writer.request(index, request)?;
        counters.entry((request.process, request.first.ring)).or_default().add(request);
    }
    writer.devices()?;
    let mut counters: Vec<_> = counters.into_iter().collect();
    counters.sort_by_key(|(ring, _)| *ring);
    for (ring, counts) in counters {
        writer.counter(ring, "in flight", counts.in_flight)?;
        writer.counter(ring, "CQ ready", counts.ready)?;
    }
    Ok(())
}

/// Changes of a ring's counters: when, and by how much.
#[derive(Default)]
struct Counts {
    in_flight: Vec<(u64, i64)>,
    ready: Vec<(u64, i64)>,
}

impl Counts {
    fn add(&mut self, request: &Request) {
        self.in_flight.push((request.from, 1));
        self.in_flight.extend(request.completed.map(|answer| (answer.at, -1)));
        for PostedCqe { at, reaped, .. } in
            request.posted.iter().chain(&request.completed).filter(|answer| answer.has_cqe)
        {
            self.ready.push((*at, 1));
            self.ready.extend(reaped.map(|reaped| (reaped, -1)));
        }
    }
}

impl Writer<'_> {
    fn packet(&mut self, packet: Message) -> io::Result<()> {
        const SEQUENCE: u64 = 10;
        write_packet(self.output, &packet.number(SEQUENCE, 1))
    }

    /// Defines a track, and returns its identifier.
    fn track(&mut self, parent: Option<u64>, describe: impl FnOnce(Message) -> Message) -> io::Result<u64> {
        const DESCRIPTOR: u64 = 60;
        self.last += 1;
        let mut track = Message::default().number(1, self.last);
        if let Some(parent) = parent {
            track = track.number(5, parent);
        }
        self.packet(Message::default().message(DESCRIPTOR, &describe(track)))?;
        Ok(self.last)
    }

    fn event(&mut self, at: u64, kind: u64, track: u64, fill: impl FnOnce(Message) -> Message) -> io::Result<()> {
        let event = fill(Message::default().number(9, kind).number(11, track));
        // Perfetto takes a packet's time as CLOCK_BOOTTIME. The trace has times of CLOCK_MONOTONIC,
        // which lag behind only by the time that the system was suspended.
        let at = self.trace.header.start[1].saturating_add(at);
        self.packet(Message::default().number(8, at).message(11, &event))
    }

    fn process(&mut self, index: usize) -> io::Result<u64> {
        if let Some(track) = self.processes.get(&index) {
            return Ok(*track);
        }
        let process = &self.requests.processes[index];
        let name = process.program.as_deref().and_then(|path| path.rsplit('/').next()).unwrap_or("(unknown)");
        let descriptor = Message::default().number(1, process.id.into()).text(6, name);
        let track = self.track(None, |track| track.message(3, &descriptor))?;
        self.processes.insert(index, track);
        Ok(track)
    }

    fn thread(&mut self, process: usize, thread: u32, name: &str) -> io::Result<u64> {
        if let Some(track) = self.threads.get(&(process, thread)) {
            return Ok(*track);
        }
        let parent = self.process(process)?;
        let id = self.requests.processes[process].id;
        let descriptor = Message::default().number(1, id.into()).number(2, thread.into()).text(5, name);
        let track = self.track(Some(parent), |track| track.message(4, &descriptor))?;
        self.threads.insert((process, thread), track);
        Ok(track)
    }

    fn ring(&mut self, ring: (usize, u32)) -> io::Result<u64> {
        if let Some((track, _)) = self.rings.get(&ring) {
            return Ok(*track);
        }
        let parent = self.process(ring.0)?;
        let name = self.ring_name(ring);
        let track = self.track(Some(parent), |track| track.text(2, &name))?;
        self.rings.insert(ring, (track, Lanes::default()));
        Ok(track)
    }

    fn ring_name(&self, ring: (usize, u32)) -> String {
        match ring.1 {
            context if is_aio(context) => "libaio context".into(),
            number if self.sq_threads.contains(&ring) => format!("ring {number} (SQ thread)"),
            number => format!("ring {number}"),
        }
    }

    /// Occupies one of the lanes below the track `parent` for a slice, and returns the lane's
    /// track.
    fn lane(&mut self, lanes: &mut Lanes, parent: u64, from: u64, until: u64) -> io::Result<u64> {
        let lane = lanes.occupy(from, until);
        if lane == lanes.tracks.len() {
            // All lanes get one name, because Perfetto's user interface merges tracks by name.
            lanes.tracks.push(self.track(Some(parent), |track| track.text(2, "requests"))?);
        }
        Ok(lanes.tracks[lane])
    }

    fn request(&mut self, index: usize, request: &Request) -> io::Result<()> {
        let ring = (request.process, request.first.ring);
        let parent = self.ring(ring)?;
        let until = request.completed.map_or(u64::MAX, |answer| answer.at);
        let mut lanes = self.rings.get_mut(&ring).map(|(_, lanes)| std::mem::take(lanes)).unwrap_or_default();
        let lane = self.lane(&mut lanes, parent, request.from, until);
        self.rings.insert(ring, (parent, lanes));
        let lane = lane?;
        let flow = index as u64 + 1;
        let name = opcode_name(request.first.opcode);
        if request.submitted.is_some() {
            let thread_name = if self.sq_threads.contains(&ring) { "SQ thread" } else { "submitter" };
            let thread = self.thread(request.process, request.first.thread, thread_name)?;
            self.event(request.from, INSTANT, thread, |event| {
                event.text(23, &format!("submit {name}")).text(22, "submit").fixed(47, flow)
            })?;
        }
        let annotations = self.annotations(request);
        self.event(request.from, BEGIN, lane, |event| {
            let event = event.text(23, name).text(22, "request").fixed(47, flow);
            annotations.iter().fold(event, |event, annotation| event.message(4, annotation))
        })?;
        for wait in &request.waits {
            self.event(wait.from, BEGIN, lane, |event| event.text(23, &wait_name(wait.cause)).text(22, "wait"))?;
            if let Some(until) = wait.until {
                self.event(until, END, lane, |event| event)?;
            }
        }
        for posted in &request.posted {
            let text = format!("CQE {}", posted.result);
            self.event(posted.at, INSTANT, lane, |event| event.text(23, &text).text(22, "cqe"))?;
        }
        if let Some(answer) = request.completed {
            self.event(answer.at, END, lane, |event| event)?;
        }
        self.elsewhere(request, name, flow)
    }

    /// Writes a slice on a worker's track for each wait of the request on that worker. Keeps the
    /// slices on devices for [`Self::devices`], which writes them in order of time.
    fn elsewhere(&mut self, request: &Request, name: &'static str, flow: u64) -> io::Result<()> {
        for wait in &request.waits {
            match wait.cause {
                Cause::Worker(thread) => {
                    let track = self.thread(request.process, thread, "worker")?;
                    self.slice(track, wait.from, wait.until, (name, "worker", flow))?;
                }
                Cause::Device(channel) => {
                    let device = (request.process, request.first.ring, channel);
                    let (from, until) = (wait.from, wait.until);
                    self.device_slices.push(DeviceSlice { device, from, until, name, flow });
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Writes a slice: name, category and flow.
    fn slice(
        &mut self,
        track: u64,
        from: u64,
        until: Option<u64>,
        (name, category, flow): (&str, &str, u64),
    ) -> io::Result<()> {
        self.event(from, BEGIN, track, |event| event.text(23, name).text(22, category).fixed(47, flow))?;
        until.map_or(Ok(()), |until| self.event(until, END, track, |event| event))
    }

    /// Writes the slices on devices in the order in which they begin, which `Lanes` needs. This
    /// order can differ from that in which the requests were submitted.
    fn devices(&mut self) -> io::Result<()> {
        let mut slices = std::mem::take(&mut self.device_slices);
        slices.sort_by_key(|slice| (slice.device, slice.from));
        for of_one in slices.chunk_by(|a, b| a.device == b.device) {
            let (process, ring, channel) = of_one[0].device;
            let parent = self.process(process)?;
            let name = format!("device {channel} of {}", self.ring_name((process, ring)));
            let parent = self.track(Some(parent), |track| track.text(2, &name))?;
            let mut lanes = Lanes::default();
            for DeviceSlice { from, until, name, flow, .. } in of_one {
                let lane = self.lane(&mut lanes, parent, *from, until.unwrap_or(u64::MAX))?;
                self.slice(lane, *from, *until, (name, "device", *flow))?;
            }
        }
        Ok(())
    }

    fn annotations(&self, request: &Request) -> Vec<Message> {
        let first = &request.first;
        let named = |name: &str| Message::default().text(10, name);
        let mut all = vec![named("user_data").number(7, first.user_data)];
        if request.submitted.is_some() {
            all.push(named("fd").signed(4, first.b[0].cast_signed().into()));
            all.push(named("length").number(3, first.b[1].into()));
            all.push(named("offset").signed(4, first.a.cast_signed()));
            all.push(named("flags").number(3, first.extra.into()));
            all.push(named("sqe_flags").number(3, first.sqe_flags.into()));
        }
        all.extend(self.trace.name(first.name).map(|file| named("file").text(6, &file)));
        all.extend(request.completed.map(|answer| named("result").signed(4, answer.result.into())));
        all
    }

    fn counter(&mut self, ring: (usize, u32), name: &str, mut changes: Vec<(u64, i64)>) -> io::Result<()> {
        if changes.is_empty() {
            return Ok(());
        }
        let parent = self.process(ring.0)?;
        let name = format!("{}: {name}", self.ring_name(ring));
        let track = self.track(Some(parent), |track| track.text(2, &name).message(8, &Message::default()))?;
        changes.sort_by_key(|(at, _)| *at);
        let mut value = 0;
        for (at, change) in changes {
            value += change;
            self.event(at, COUNTER, track, |event| event.signed(30, value))?;
        }
        Ok(())
    }
}

fn has_sq_thread(ring: &RingInfo) -> bool {
    ring.flags.is_some_and(|flags| flags & IORING_SETUP_SQPOLL != 0)
}

fn wait_name(cause: Cause) -> String {
    match cause {
        Cause::Chain => "chain".into(),
        Cause::Drain => "drain".into(),
        Cause::File => "poll".into(),
        Cause::Time => "timer".into(),
        Cause::Processes => "other processes".into(),
        Cause::Fault => "fault".into(),
        Cause::Queue(reason) => format!("queue ({})", reason_words(reason)),
        Cause::Worker(thread) => format!("worker {thread}"),
        Cause::TaskWork => "task work".into(),
        Cause::Device(channel) => format!("device {channel}"),
        Cause::OtherRing => "other ring".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_take_the_first_free_lane() {
        let mut lanes = Lanes::default();
        let mut occupy = |from, until| {
            let lane = lanes.occupy(from, until);
            if lane == lanes.tracks.len() {
                lanes.tracks.push(0);
            }
            lane
        };
        assert_eq!([occupy(0, 10), occupy(1, 5), occupy(2, 4), occupy(3, u64::MAX)], [0, 1, 2, 3]);
        assert_eq!([occupy(5, 20), occupy(6, 7), occupy(10, 11)], [1, 2, 0]);
    }
}
