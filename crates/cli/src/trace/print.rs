//! The lines of `usring trace`: a line for each request, as strace(1) has one for each call.

use super::file::Loaded;
use super::requests::{Cause, PostedCqe, Request, Requests, Wait};
use crate::system_error::words;
use std::fmt::{self, Display, Write};
use std::io;
use usring_engine::observers::WorkerReason;
use usring_trace::format::{HAS_FILE, is_aio};
use usring_uapi::io_uring as abi;
use usring_uapi::{opcode, sqe_flags};

/// How the lines are written.
pub struct Printer<'a> {
    pub trace: &'a Loaded,
    pub requests: &'a Requests,
    /// Each step has a line of its own.
    pub steps: bool,
}

/// A span of time in nanoseconds, printed in the unit that fits it.
pub struct Span(pub u64);

impl Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (unit, name) = match self.0 {
            0..1_000 => return write!(f, "{} ns", self.0),
            1_000..1_000_000 => (1_000, "µs"),
            1_000_000..1_000_000_000 => (1_000_000, "ms"),
            _ => (1_000_000_000, "s"),
        };
        // Rounds to three decimal places, and leaves out zeros at the end.
        let thousandths = self.0.saturating_add(unit / 2_000) / (unit / 1_000);
        let text = format!("{}.{:03}", thousandths / 1_000, thousandths % 1_000);
        write!(f, "{} {name}", text.trim_end_matches('0').trim_end_matches('.'))
    }
}

/// Returns an opcode's name.
pub fn opcode_name(number: u8) -> &'static str {
    opcode::NAMES.get(usize::from(number)).copied().unwrap_or("(unknown)")
}

impl Printer<'_> {
    /// Appends the lines of a request to `text`.
    pub fn write(&self, text: &mut String, request: &Request) {
        let _ = self.try_write(text, request);
    }

    fn try_write(&self, text: &mut String, request: &Request) -> fmt::Result {
        let first = &request.first;
        if self.requests.processes.len() > 1 {
            write!(text, "[pid {}] ", self.requests.processes[request.process].id)?;
        }
        if self.requests.rings.len() > 1 {
            match first.ring {
                ring if is_aio(ring) => write!(text, "[aio] ")?,
                ring => write!(text, "[ring {ring}] ")?,
            }
        }
        let seconds = request.from / 1_000_000_000;
        write!(text, "{seconds}.{:09} ", request.from % 1_000_000_000)?;
        self.write_call(text, request)?;
        if self.steps {
            return self.write_steps(text, request);
        }
        for cqe in &request.posted {
            write!(text, " ~ {}", ResultText(cqe))?;
        }
        match &request.completed {
            Some(cqe) => write!(text, " = {}", ResultText(cqe))?,
            None => text.push_str(" = ? (in flight)"),
        }
        if let Some(span) = request.latency() {
            write!(text, " <{}>", Span(span))?;
        }
        writeln!(text, " {}", WayText(request))
    }

    /// Appends the opcode and the arguments of a request, such as `read(3</srv/db>, 4096 bytes,
    /// user_data 0x1)`.
    pub fn write_call(&self, text: &mut String, request: &Request) -> fmt::Result {
        write!(text, "{}(", opcode_name(request.first.opcode))?;
        self.write_arguments(text, request)?;
        text.write_char(')')
    }

    fn write_arguments(&self, text: &mut String, request: &Request) -> fmt::Result {
        let first = &request.first;
        // The traced program chooses the names of its files, so a name may have terminal escapes or
        // newlines.
        let name = self.trace.name(first.name).map(|name| name.escape_debug().to_string());
        if request.submitted.is_none() {
            return write!(text, "…, user_data {:#x}", first.user_data);
        }
        let (number, length) = (first.b[0].cast_signed(), first.b[1]);
        match (first.detail & HAS_FILE != 0, &name) {
            (true, Some(name)) if first.sqe_flags & sqe_flags::FIXED_FILE != 0 => {
                write!(text, "registered {number}<{name}>, ")?;
            }
            (true, None) if first.sqe_flags & sqe_flags::FIXED_FILE != 0 => write!(text, "registered {number}, ")?,
            (true, Some(name)) => write!(text, "{number}<{name}>, ")?,
            (true, None) => write!(text, "{number}, ")?,
            (false, Some(name)) => write!(text, "\"{name}\", ")?,
            (false, None) if first.opcode == opcode::CLOSE => write!(text, "{number}, ")?,
            (false, None) => {}
        }
        let (has_length, has_offset) = shape(first.opcode);
        if has_length {
            write!(text, "{length} bytes, ")?;
        }
        // Offset −1 means the file's current position.
        if has_offset && first.a != u64::MAX {
            write!(text, "offset {}, ", first.a)?;
        }
        if first.extra != 0 {
            write!(text, "flags {:#x}, ", first.extra)?;
        }
        for (flag, name) in SQE_FLAGS {
            if first.sqe_flags & flag != 0 {
                write!(text, "{name}, ")?;
            }
        }
        write!(text, "user_data {:#x}", first.user_data)
    }

    fn write_steps(&self, text: &mut String, request: &Request) -> fmt::Result {
        let start = request.from;
        let mut lines: Vec<(u64, String)> = vec![(start, format!("submitted by thread {}", request.first.thread))];
        if request.submitted.is_none() {
            lines[0].1 = "first event; earlier ones were lost".into();
        }
        for Wait { cause, from, until } in &request.waits {
            lines.push((*from, step_of(*cause)));
            if let (Some(until), Cause::File | Cause::Time | Cause::Chain | Cause::Drain | Cause::Fault) =
                (until, cause)
                && request.completed.is_none_or(|cqe| cqe.at != *until)
            {
                let word = if *cause == Cause::File { "is tried again" } else { "is tried" };
                lines.push((*until, word.into()));
            }
        }
        let last = request.completed.as_ref().map(|cqe| (cqe, "completed"));
        for (cqe, word) in request.posted.iter().map(|cqe| (cqe, "posted")).chain(last) {
            lines.push((cqe.at, format!("{word} = {}", ResultText(cqe))));
            if let Some(reaped) = cqe.reaped {
                lines.push((reaped, "seen to be reaped".into()));
            }
        }
        if request.not_begun {
            lines.push((request.completed.map_or(start, |cqe| cqe.at), "had not begun: its chain broke".into()));
        }
        lines.sort_by_key(|(at, _)| *at);
        writeln!(text)?;
        lines
            .iter()
            .try_for_each(|(at, line)| writeln!(text, "    +{:<12} {line}", Span(at.saturating_sub(start)).to_string()))
    }
}

/// Returns in words what a request does during a wait.
pub fn step_of(cause: Cause) -> String {
    match cause {
        Cause::Chain => "waits for the request before it in its chain".into(),
        Cause::Drain => "waits for earlier requests (drain)".into(),
        Cause::File => "waits for its file".into(),
        Cause::Time => "waits for a time or completions".into(),
        Cause::Processes => "waits for processes that share its ring".into(),
        Cause::Fault => "is delayed by --inject or --order".into(),
        Cause::Queue(reason) => format!("is queued for a worker: {}", reason_words(reason)),
        Cause::Worker(thread) => format!("is carried out by worker {thread}"),
        Cause::TaskWork => "is passed to its ring as task work".into(),
        Cause::Device(index) => format!("is handed to device channel {index}"),
        Cause::OtherRing => "is handed to another ring".into(),
    }
}

/// Returns in words why a request went to a worker.
pub fn reason_words(reason: WorkerReason) -> &'static str {
    match reason {
        WorkerReason::Asked => "IOSQE_ASYNC",
        WorkerReason::AfterDrain => "after a drain",
        WorkerReason::Rights => "other rights",
        WorkerReason::WouldBlock => "would block",
        WorkerReason::Opcode => "blocking opcode",
    }
}

/// The flags of an SQE that a line shows among the request's arguments, with their names.
const SQE_FLAGS: [(u8, &str); 6] = [
    (sqe_flags::IO_DRAIN, "IO_DRAIN"),
    (sqe_flags::IO_LINK, "IO_LINK"),
    (sqe_flags::IO_HARDLINK, "IO_HARDLINK"),
    (sqe_flags::ASYNC, "ASYNC"),
    (sqe_flags::BUFFER_SELECT, "BUFFER_SELECT"),
    (sqe_flags::CQE_SKIP_SUCCESS, "CQE_SKIP_SUCCESS"),
];

/// Returns whether requests with this opcode have a number of bytes, and whether they have a file
/// offset.
fn shape(number: u8) -> (bool, bool) {
    use opcode::{READ, READ_FIXED, READ_MULTISHOT, READV, READV_FIXED, WRITE, WRITE_FIXED, WRITEV, WRITEV_FIXED};
    use opcode::{RECV, RECVMSG, SEND, SEND_ZC, SENDMSG, SENDMSG_ZC, SPLICE, SYNC_FILE_RANGE, TEE};
    match number {
        READ | READ_FIXED | READ_MULTISHOT | READV | READV_FIXED => (true, true),
        WRITE | WRITE_FIXED | WRITEV | WRITEV_FIXED | SYNC_FILE_RANGE => (true, true),
        RECV | RECVMSG | SEND | SEND_ZC | SENDMSG | SENDMSG_ZC | SPLICE | TEE => (true, false),
        _ => (false, false),
    }
}

/// The result of a CQE, and its flags.
struct ResultText<'a>(&'a PostedCqe);

impl Display for ResultText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PostedCqe { result, flags, has_cqe, .. } = *self.0;
        match i32::try_from(result.unsigned_abs()) {
            _ if result >= 0 => write!(f, "{result}")?,
            Ok(number) => write!(f, "-{}", words(&io::Error::from_raw_os_error(number)))?,
            Err(_) => write!(f, "{result}")?,
        }
        if flags & abi::IORING_CQE_F_BUFFER != 0 {
            write!(f, " buffer {}", flags >> abi::IORING_CQE_BUFFER_SHIFT)?;
        }
        if !has_cqe {
            write!(f, " (no CQE)")?;
        }
        Ok(())
    }
}

/// Formats what a request waited for, and how long.
struct WayText<'a>(&'a Request);

impl Display for WayText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.not_begun {
            return write!(f, "not begun: its chain broke");
        }
        if self.0.waits.is_empty() {
            return f.write_str(if self.0.submitted.is_some() && self.0.completed.is_some() { "inline" } else { "" });
        }
        for (index, wait) in self.0.waits.iter().enumerate() {
            if index > 0 {
                f.write_str(", ")?;
            }
            match wait.cause {
                Cause::Chain => f.write_str("chain")?,
                Cause::Drain => f.write_str("drain")?,
                Cause::File => f.write_str("poll")?,
                Cause::Time => f.write_str("timer")?,
                Cause::Processes => f.write_str("other processes")?,
                Cause::Fault => f.write_str("fault")?,
                Cause::Queue(reason) => write!(f, "queue ({})", reason_words(reason))?,
                Cause::Worker(thread) => write!(f, "worker {thread}")?,
                Cause::TaskWork => f.write_str("task work")?,
                Cause::Device(channel) => write!(f, "device {channel}")?,
                Cause::OtherRing => f.write_str("other ring")?,
            }
            match wait.until {
                Some(until) => write!(f, " {}", Span(until.saturating_sub(wait.from)))?,
                None => f.write_str(" …")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::requests::join;
    use usring_trace::format::{EventKind, Header, Record, name_words, seal};

    #[test]
    fn spans_have_the_unit_that_fits() {
        let texts = [0, 999, 1_000, 1_500, 999_999, 12_345_678, 2_000_000_000].map(|span| Span(span).to_string());
        assert!(Span(u64::MAX).to_string().ends_with(" s"));
        assert_eq!(texts, ["0 ns", "999 ns", "1 µs", "1.5 µs", "999.999 µs", "12.346 ms", "2 s"]);
    }

    /// Returns the line of a request on this file that has completed with this result.
    fn line(name: &str, opens: bool, result: i32) -> String {
        let names = name_words(name.as_bytes(), 0);
        let submitted =
            Record { detail: if opens { 0 } else { HAS_FILE }, name: 1, ..Record::new(EventKind::Submitted) };
        let completed = Record { a: u64::from(result.cast_unsigned()), ..Record::new(EventKind::Completed) };
        let header = Header { names: names.len() as u64, records: 2, ..Header::default() };
        let records = [submitted, completed].into_iter().zip(0..).flat_map(|(record, number)| {
            let words = record.words();
            words.into_iter().chain([seal(&words, number)])
        });
        let bytes: Vec<u8> = names.into_iter().chain(records).flat_map(u64::to_le_bytes).collect();
        let trace = Loaded::read_rest(header, &mut &bytes[..]).unwrap();
        let requests = join(&trace);
        let mut text = String::new();
        Printer { trace: &trace, requests: &requests, steps: false }.write(&mut text, &requests.all[0]);
        text
    }

    #[test]
    fn names_are_printed_without_control_characters() {
        for opens in [false, true] {
            let line = line("/srv/\x1b[2J\x07\nforged \u{202e}ü", opens, 0);
            assert!(line.contains("/srv/\\u{1b}[2J\\u{7}\\nforged \\u{202e}ü"), "{line}");
            assert_eq!(line.matches(char::is_control).collect::<Vec<_>>(), ["\n"]);
        }
    }

    #[test]
    fn every_result_is_printed() {
        assert!(line("a", true, -2).contains(" = -ENOENT: no such file or directory <"));
        assert!(line("a", true, -9999).contains(" = -errno 9999 <"));
        assert!(line("a", true, i32::MIN).contains(" = -2147483648 <"));
        assert!(line("a", true, i32::MAX).contains(" = 2147483647 <"));
    }
}
