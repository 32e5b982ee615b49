//! The filters of `usring trace`.

use super::requests::{Process, Request};
use usring_trace::format::{HAS_FILE, is_aio};
use usring_uapi::{opcode, sqe_flags};

/// Which requests are shown: those that meet all conditions.
#[derive(clap::Args, Debug, Default)]
pub struct Filters {
    /// Only requests with these opcodes, such as read,write. `usring ctl inject names` lists the
    /// opcodes.
    #[arg(long, value_name = "NAME", value_delimiter = ',', value_parser = parse_opcode)]
    pub opcode: Vec<u8>,

    /// Only requests on this descriptor.
    #[arg(long, value_name = "N")]
    pub fd: Option<i32>,

    /// Only requests on files whose path contains TEXT.
    #[arg(long, value_name = "TEXT")]
    pub path: Option<String>,

    /// Only requests on the ring with this number in its process. Contexts of libaio have the
    /// number 0.
    #[arg(long, value_name = "N")]
    pub ring: Option<u32>,

    /// Only requests of this process.
    #[arg(long, value_name = "PID")]
    pub pid: Option<u32>,

    /// Only requests that completed with an error.
    #[arg(long)]
    pub errors: bool,

    /// Only requests that took longer than SPAN, such as 500us or 10ms, or have not completed.
    #[arg(long, value_name = "SPAN", value_parser = parse_span)]
    pub slower: Option<u64>,
}

fn parse_opcode(text: &str) -> Result<u8, String> {
    let name = text.to_ascii_lowercase();
    let found = opcode::NAMES.iter().position(|known| *known == name);
    found
        .and_then(|number| u8::try_from(number).ok())
        .ok_or_else(|| format!("'{text}' is not an opcode; `usring ctl inject names` lists the opcodes"))
}

fn parse_span(text: &str) -> Result<u64, String> {
    usring_device::span::parse(text).ok_or_else(|| "a span is a number with ns, us, ms or s, such as 500us".into())
}

impl Filters {
    /// Returns whether a request meets the conditions of all options that the user has set. `name`:
    /// the path of the request's file, if the trace has it.
    pub fn meets(&self, request: &Request, process: &Process, name: Option<&str>) -> bool {
        let first = &request.first;
        let is_on = |number: i32| {
            let is_slot = first.sqe_flags & sqe_flags::FIXED_FILE != 0;
            first.detail & HAS_FILE != 0 && !is_slot && first.b[0].cast_signed() == number
        };
        (self.opcode.is_empty() || self.opcode.contains(&first.opcode))
            && self.fd.is_none_or(is_on)
            && self.path.as_ref().is_none_or(|text| name.is_some_and(|name| name.contains(text)))
            && self.ring.is_none_or(|ring| if is_aio(first.ring) { ring == 0 } else { ring == first.ring })
            && self.pid.is_none_or(|id| id == process.id)
            && (!self.errors || request.completed.is_some_and(|cqe| cqe.result < 0))
            && self.slower.is_none_or(|span| request.completed.is_none() || request.latency() > Some(span))
    }
}
