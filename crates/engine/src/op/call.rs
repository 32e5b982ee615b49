//! Operations that are one system call which may block. A worker makes the call, with the program's
//! memory that was copied when the request was prepared.

use super::Operation;
use crate::device_file;
use crate::request::Request;
use crate::waiting::workers::Blocking;
use alloc::vec::Vec;
use usring_sys::{Errno, SystemCall};

/// The call, ready to be made.
pub(crate) struct Call {
    pub call: SystemCall,
    /// Its first argument is the request's file.
    pub on_file: bool,
    /// Copied memory that its pointers point to.
    #[expect(dead_code, reason = "owned because the call points into it")]
    memory: Vec<u8>,
}

impl Call {
    pub fn on_file(number: u32, rest: [u64; 4]) -> Operation {
        let [b, c, d, e] = rest;
        Operation::Call(Call { call: SystemCall::new(number, [0, b, c, d, e]), on_file: true, memory: Vec::new() })
    }

    /// Makes a call whose first argument is the file's number.
    pub fn on_file_with_memory(number: u32, arguments: [u64; 5], memory: Vec<u8>) -> Operation {
        Operation::Call(Call { call: SystemCall::new(number, arguments), on_file: true, memory })
    }

    pub fn with_memory(number: u32, arguments: [u64; 5], memory: Vec<u8>) -> Operation {
        Operation::Call(Call { call: SystemCall::new(number, arguments), on_file: false, memory })
    }
}

/// Makes the call, and may block.
pub(crate) fn work(request: &mut Request, blocking: &Blocking) -> i32 {
    let number = request.file.number;
    let call = match &mut request.operation {
        Operation::Call(call) => {
            if call.on_file {
                call.call.arguments[0] = number as u64;
            }
            call.call
        }
        _ => return Errno::EINVAL.negative(),
    };
    let on_device = match &request.file.device {
        Some(file) => device_file::system_call(file, number, &call),
        None => None,
    };
    answer(on_device.unwrap_or_else(|| blocking.run(&call)))
}

/// Returns a system call's answer as a CQE's result.
pub(crate) fn answer(result: Result<u64, Errno>) -> i32 {
    match result {
        Ok(value) => value as i32,
        Err(error) => error.negative(),
    }
}
